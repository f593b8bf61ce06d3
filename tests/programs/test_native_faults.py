"""Runs of handlers that end early: the program does not notice, and the probe says why."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import sidestep as api
from harness.build import Builder
from harness.handlers import WORKER, Bare, Run, run_under, run_with
from harness.probing import attached
from harness.programs import comparable, counts, place, run_until_done
from sidestep import native, read_u8, read_u64, u64

BAD = {"null": 0, "unmapped": 0x1000, "non-canonical": 1 << 63, "kernel": (1 << 64) - 4096}


@pytest.mark.parametrize("name", ["threads", "signals", "fault", "late_handler"])
@pytest.mark.parametrize("address", BAD.values(), ids=BAD)
def test_bad_reads_end_the_handler(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare, name: str, address: int
) -> None:
    """Programs with and without handlers of their own for the signal that a bad read would raise."""
    before, behind = api.Counter(), api.Counter()

    @native
    def handler(p, regs):  # type: ignore[no-untyped-def]
        before.add(1)
        behind.add(read_u64(address) | 1)

    expected = bare(name)
    probes: dict[str, Any] = {}

    def register(target: Any) -> None:
        for function in counts(expected):
            if ":" not in function:
                try:
                    probes[function] = target.kprobe(place(name, function))(handler)
                except sidestep.ProbeError:
                    continue

    def check() -> None:
        assert all(probe.faults == probe.hits for probe in probes.values())
        assert before.value == sum(probe.hits for probe in probes.values())
        assert behind.value == 0

    outcome = run_under(sidestep, run(build(name), "wait"), register, check)
    assert comparable(outcome) == comparable(expected), str(outcome)


def test_memory_that_comes_and_goes_is_read_or_counted(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare
) -> None:
    """The argument of `touch` lies in a page without any permission at each call; that of `touch_first`, too,
    and its entry is tried again when the program's handler has made it readable."""
    read = api.Counter()

    @native
    def handler(p, regs):  # type: ignore[no-untyped-def]
        read.add(u64(read_u8(regs.arg(0))) | 1)

    name = "fault"
    expected = bare(name)
    probes: list[Any] = []

    def register(target: Any) -> None:
        for function in ("touch", "touch_first"):
            probes.append(target.kprobe(place(name, function))(handler))

    def check() -> None:
        touch, touch_first = probes
        assert touch.faults == touch.hits == counts(expected)["touch"]
        assert touch_first.faults * 2 == touch_first.hits == counts(expected)["touch_first"]

    outcome = run_under(sidestep, run(build(name), "wait"), register, check)
    assert comparable(outcome) == comparable(expected), str(outcome)
    assert read.value > 0


def test_a_loop_without_end_is_ended(sidestep: ModuleType, build: Builder, run: Run, bare: Bare) -> None:
    @native(fuel=100)
    def handler(p, regs):  # type: ignore[no-untyped-def]
        while True:
            pass

    outcome, probes = run_with(sidestep, build, run, handler)
    assert comparable(outcome) == comparable(bare(WORKER)), str(outcome)
    assert probes[0].faults == probes[0].hits == counts(bare(WORKER))["work"]


def test_words_behind_the_end_of_a_stack_are_a_fault(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare
) -> None:
    @native
    def handler(p, regs):  # type: ignore[no-untyped-def]
        assert regs.stack(0) != 0
        assert regs.stack(60000) != 1

    outcome, probes = run_with(sidestep, build, run, handler)
    assert comparable(outcome) == comparable(bare(WORKER)), str(outcome)
    assert probes[0].hits == counts(bare(WORKER))["work"]


def faulting() -> list[tuple[Any, str]]:
    """Handlers whose every run ends early, with what is said about it. `line` is that of the def."""
    array = api.Array(4)

    @native
    def reads(p, regs):  # type: ignore[no-untyped-def]
        regs.ax = read_u64(8)

    @native
    def reads_far(p, regs):  # type: ignore[no-untyped-def]
        regs.ax = u64(read_u8(u64(1) << 63))

    @native
    def writes(p, regs):  # type: ignore[no-untyped-def]
        api.write_u16(p.addr, 1)

    @native
    def divides(p, regs):  # type: ignore[no-untyped-def]
        regs.ax = regs.di // (regs.di - regs.di)

    @native
    def asserts(p, regs):  # type: ignore[no-untyped-def]
        assert regs.sp == 0, "the stack is somewhere"

    @native
    def asserts_silently(p, regs):  # type: ignore[no-untyped-def]
        assert regs.sp == 0

    @native
    def loops(p, regs):  # type: ignore[no-untyped-def]
        while True:
            pass

    @native
    def goes_nowhere(p, regs):  # type: ignore[no-untyped-def]
        regs.ip = p.addr
        return 1

    @native
    def compares(p, regs):  # type: ignore[no-untyped-def]
        assert api.string(u64(16), 8) == "text"

    @native
    def leaves_the_array(p, regs):  # type: ignore[no-untyped-def]
        array[4] += 1

    return [
        (reads, r"\+2: u64 cannot be read at 0x8"),
        (reads_far, r"\+2: u8 cannot be read at an impossible address"),
        (writes, r"\+2: u16 cannot be written at 0x[0-9a-f]+"),
        (divides, r"\+2: division by zero"),
        (asserts, r"\+2: the stack is somewhere"),
        (asserts_silently, r"\+2: `regs\.sp == 0` does not hold"),
        (loops, r"\+2: out of fuel"),
        (goes_nowhere, r"it returned true, but set regs\.ip to no place where it can go on"),
        (compares, r"\+2: text cannot be read at 0x10"),
        (leaves_the_array, r"\+2: `index < self\.size` does not hold"),
    ]


FAULTING = faulting()


@pytest.mark.parametrize(("handler", "why"), FAULTING, ids=[handler.__name__ for handler, _ in FAULTING])
def test_a_fault_says_where_and_why(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare, handler: Any, why: str
) -> None:
    running = run(build(WORKER), "20", "wait")
    running.expect("ready")
    with attached(sidestep, running.pid) as target:
        probe = target.kprobe(place(WORKER, "work"))(handler)
        assert probe.last_fault is None
        running.send()
        run_until_done(running)
        line = handler.function.__code__.co_firstlineno + 1
        wanted = why.replace(r"\+2", f"{Path(__file__).name}:{line + 1}", 1)
        assert re.fullmatch(wanted, str(probe.last_fault)), probe.last_fault
        live = probe.last_fault
    assert (probe.faults, probe.last_fault) == (probe.hits, live)
    running.send()
    assert comparable(running.finish()) == comparable(bare(WORKER, 20))
