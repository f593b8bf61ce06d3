"""Handlers that go on elsewhere: functions that are skipped, instructions that are left out."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

import pytest

from harness.build import Builder
from harness.handlers import WORKER, Bare, Maps, Run, run_under, run_with
from harness.probing import attached
from harness.programs import comparable, counts, place, run_until_done
from sidestep import native, u64
from sidestep.target.process.process import Process


def test_a_function_is_skipped_and_returns_what_the_handler_says(
    sidestep: ModuleType, build: Builder, run: Run
) -> None:
    @native
    def handler(p, regs):  # type: ignore[no-untyped-def]
        regs.ax = regs.arg(0) // 2
        regs.ip = regs.return_address
        regs.sp += 8
        return 1

    name, size = "threads", 30000
    probes: list[Any] = []
    outcome = run_under(
        sidestep,
        run(build(name), str(size), "wait"),
        lambda target: probes.append(target.kprobe(place(name, "work"))(handler)),
        lambda: None,
    )
    others = sum(turn // (thread + 1) + 3 for thread in range(8) for turn in range(size))
    total = sum(range(8)) + others + 8 * sum(turn // 2 for turn in range(size))
    assert re.search(r"^sum (-?\d+)$", outcome.output, re.M)[1] == str(total)  # type: ignore[index]
    assert (probes[0].hits, probes[0].faults) == (8 * size, 0)


def test_no_function_is_skipped_where_returns_are_checked(
    sidestep: ModuleType, build: Builder, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    @native
    def handler(p, regs):  # type: ignore[no-untyped-def]
        regs.ip = regs.return_address
        regs.sp += 8
        return 1

    monkeypatch.setattr(Process, "has_shadow_stack", True)
    running = run(build("threads"), "wait")
    running.expect("ready")
    with attached(sidestep, running.pid) as target:
        with pytest.raises(sidestep.ProbeError, match="shadow stack"):
            target.kprobe("threads:work")(handler)
        assert not target.probes


@pytest.mark.parametrize("offset", [-8, -4096, 1 << 40])
def test_a_stack_pointer_that_no_return_gives_is_a_fault(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare, offset: int
) -> None:
    @native
    def handler(p, regs):  # type: ignore[no-untyped-def]
        regs.ip = regs.return_address
        regs.sp += u64(offset)
        return 1

    outcome, probes = run_with(sidestep, build, run, handler)
    assert comparable(outcome) == comparable(bare(WORKER)), str(outcome)
    assert probes[0].faults == probes[0].hits == counts(bare(WORKER))["work"]


def stepped(value: int, *, adds: bool, compares: bool, counts_one: bool = True) -> int:
    """What the function of skips.c gives if these of its instructions are executed."""
    result = value + 1000 if adds else value
    if (value < 5) if compares else (result < 0):
        return result
    return result + 7 + (1 if counts_one else 0)


@native
def leave_out_the_addition(p, regs):  # type: ignore[no-untyped-def]
    if regs.di & 1 != 0:
        regs.ip = p.addr + 6
        return 1
    return 0


@native
def by_length(regs, length: u64):  # type: ignore[no-untyped-def]
    regs.ip += length
    return 1


@native
def leave_out_the_comparison(p, regs):  # type: ignore[no-untyped-def]
    return by_length(regs, 4)


@native
def leave_out_what_is_above_the_red_zone(p, regs):  # type: ignore[no-untyped-def]
    if regs.di & 1 != 0:
        regs.ip = p.addr + 4
    else:
        regs.ip = p.addr + 5
    return 1


SKIPS = [
    (3, leave_out_the_addition, lambda value: stepped(value, adds=not value & 1, compares=True)),
    (9, leave_out_the_comparison, lambda value: stepped(value, adds=True, compares=False)),
    (24, leave_out_what_is_above_the_red_zone,
     lambda value: stepped(value, adds=True, compares=True, counts_one=False)),
]  # fmt: skip


@pytest.mark.parametrize(("offset", "handler", "expected"), SKIPS, ids=["addition", "comparison", "red zone"])
@pytest.mark.parametrize("others", [False, True], ids=["alone", "among others"])
def test_instructions_are_left_out(
    sidestep: ModuleType, build: Builder, run: Run, offset: int, handler: Any, expected: Any, others: bool
) -> None:
    """Flags and the red zone are as they were; probes on the way are hit as often as control arrives at
    them."""
    name, size = "skips", 3000
    probes: dict[int, Any] = {}
    counted: dict[int, Any] = {}
    other = Maps().handler

    def probe(target: Any) -> None:
        if others:
            for each in (0, 3, 9, 13, 15, 24, 28, 29):
                try:
                    counted[each] = target.kprobe(place(name, "stepped", each))(other)
                except sidestep.ProbeError:
                    continue
        probes[offset] = target.kprobe(place(name, "stepped", offset))(handler)

    outcome = run_under(sidestep, run(build(name), str(size), "wait"), probe, lambda: None)
    values = range(-size // 2, size // 2)
    total = sum(expected(value) * (turn % 7 + 1) for turn, value in enumerate(values))
    assert f"sum {total}" in outcome.output.splitlines(), str(outcome)
    assert probes[offset].faults == 0
    falls = [value for value in values if (value >= -1000 if offset == 9 else value >= 5)]
    for each, there in {**counted, **probes}.items():
        arrived = size if each <= 13 else len(falls)
        if (offset, each) == (24, 28):  # others go on behind it
            arrived = sum(value & 1 for value in falls)
        assert there.hits == arrived, each
    assert len(counted) == (8 if others else 0)


@native
def leave_out_three(p, regs):  # type: ignore[no-untyped-def]
    regs.ip = p.addr + 6
    return 1


@pytest.mark.parametrize("others", [(), (0,), (0, 8), (8, 0), (0, 6), (0, 4, 6, 8, 10)], ids=str)
def test_a_place_that_would_be_in_the_middle_of_another_jump(
    sidestep: ModuleType, build: Builder, run: Run, others: tuple[int, ...]
) -> None:
    """The handler stands at +2 and goes on at +8; neighbours take part of what its own probe would move."""
    name, size = "skips", 50
    probes: dict[int, Any] = {}

    def probe(target: Any) -> None:
        for each in others:
            (probes[each],) = target.count(f"p:at_{each} {place(name, 'short_steps', each)}").probes
        probes[2] = target.kprobe(place(name, "short_steps", 2))(leave_out_three)

    outcome = run_under(sidestep, run(build(name), str(size), "wait"), probe, lambda: None)
    assert f"steps {5 * size}" in outcome.output.splitlines(), str(outcome)
    for each, there in probes.items():
        assert there.hits == (0 if each in (4, 6) else size), each


def test_places_that_a_handler_cannot_go_on_at(sidestep: ModuleType, build: Builder, run: Run) -> None:
    @native
    def anywhere(p, regs):  # type: ignore[no-untyped-def]
        regs.ip = regs.di
        return 1

    @native
    def inside(p, regs):  # type: ignore[no-untyped-def]
        regs.ip = p.addr + 2
        return 1

    @native
    def lowered(p, regs):  # type: ignore[no-untyped-def]
        regs.ip = p.addr + 6
        regs.sp += 8
        return 1

    running = run(build("skips"), "wait")
    running.expect("ready")
    with attached(sidestep, running.pid) as target:
        for handler, why in (
            (anywhere, r"must set regs\.ip to p\.addr plus a known number"),
            (inside, r"the end of an instruction that moves: 6"),
            (lowered, r"cannot change regs\.sp"),
        ):
            with pytest.raises(sidestep.ProbeError, match=why):
                target.kprobe(place("skips", "stepped", 3))(handler)
    running.send()
    run_until_done(running)
    running.send()
    running.finish()
