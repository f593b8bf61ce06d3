"""Native handlers in programs: exact figures, and programs that run as without them."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import sidestep as api
from harness.build import Builder
from harness.handlers import Bare, Maps, Run, nothing_left, run_under
from harness.probing import attached
from harness.programs import comparable, counts, place, run_until_done
from sidestep import emit, native, read_u8, read_u64, tid, u64

ROUNDS = 8


class Happened(api.Event):
    value: u64
    thread: api.u32
    small: api.i8


@pytest.mark.parametrize(("name", "size"), [("threads", 200000), ("forkthreads", 400)])
def test_sums_are_exact(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare, name: str, size: int
) -> None:
    """Under many threads, and in the children that they fork."""
    expected, maps, probes = bare(name, size), Maps(), []

    def register(target: Any) -> None:
        probes.append(target.kprobe(place(name, "work"))(maps.handler))

    def check() -> None:
        (probe,) = probes
        assert maps.totals == dict.fromkeys(maps.totals, counts(expected)["work"])
        assert (probe.hits, probe.faults) == (counts(expected)["work"], 0)

    outcome = run_under(sidestep, run(build(name), str(size), "wait"), register, check)
    assert comparable(outcome) == comparable(expected), str(outcome)
    assert maps.totals == dict.fromkeys(maps.totals, counts(expected)["work"])  # kept after the session
    if name == "threads":
        assert maps.stats.to_dict() == {
            "count": 8 * size, "sum": 8 * sum(range(size)), "min": 0, "max": size - 1,
            "mean": sum(range(size)) / size,
        }  # fmt: skip
        assert maps.array.to_list() == [2 * size] * 4
        assert sorted(maps.threads.to_dict().values()) == [size] * 8
    assert not maps.table.drops


def test_events_are_delivered_or_counted_as_lost(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare
) -> None:
    name, size = "threads", 50000
    emitted = api.Counter()

    @native
    def handler(p, regs):  # type: ignore[no-untyped-def]
        emit(Happened(value=regs.arg(0), small=api.i8(regs.arg(0)), thread=tid()))
        emitted.add(1)

    running = run(build(name), str(size), "wait")
    running.expect("ready")
    with attached(sidestep, running.pid) as target:
        target.kprobe(place(name, "work"))(handler)
        running.send()
        run_until_done(running)
        events = list(target.events(timeout=0))
    events += target.events()
    assert emitted.value == 8 * size
    assert len(events) + target.lost == 8 * size
    assert events
    for event in events:
        assert (event.args["value"] ^ event.args["small"]) & 0xFF == 0
        assert event.args["thread"] == event.tid
    running.send()
    assert comparable(running.finish()) == comparable(bare(name, size))


def test_threads_with_thread_blocks_of_their_own(sidestep: ModuleType, build: Builder, run: Run) -> None:
    name, size = "thread_blocks", 300
    by_tid, calls = api.Hash(64), api.Counter()

    @native
    def handler(p, regs):  # type: ignore[no-untyped-def]
        by_tid[api.u64(tid())] += 1
        calls.add(1)
        emit(Happened(value=regs.arg(0), small=api.i8(0), thread=tid()))

    running = run(build(name), str(size), "wait")
    running.expect("ready")
    with attached(sidestep, running.pid) as target:
        probe = target.kprobe(place(name, "work"))(handler)
        running.send()
        run_until_done(running)
    running.send()
    number = counts(running.finish())["work"]
    events = list(target.events())
    assert (calls.value, probe.hits, len(events)) == (number, number, number)
    assert sorted(by_tid.to_dict().values()) == [size] * 8 + [3 * size] * 2
    assert all(event.tid == event.args["thread"] for event in events)
    assert Counter(event.tid for event in events) == by_tid.to_dict()


PRESERVED = {
    "vectors": 20000, "flags": 20, "redzone": None, "sse": None, "x87": None, "direction": None, "abi": None,
    "stackalign": None, "ret_imm16": None, "sigaltstack": None, "coroutines": None,
}  # fmt: skip


@pytest.mark.parametrize("name", PRESERVED)
def test_registers_are_as_the_program_left_them(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare, name: str
) -> None:
    """A handler that uses all that there is, on every function that the program counts."""
    size = PRESERVED[name]
    program, expected, maps = build(name), bare(name, size), Maps()
    inner, divided = maps.handler, maps.counter

    @native
    def handler(p, regs):  # type: ignore[no-untyped-def]
        inner(p, regs)
        if read_u64(regs.sp) != regs.return_address:
            emit(Happened(value=regs.flags, thread=tid(), small=3))
        for turn in range(3):
            divided.add(u64(turn) // (regs.r15 | 1))

    probes: dict[str, Any] = {}

    def register(target: Any) -> None:
        for function in counts(expected):
            if ":" not in function:
                try:
                    probes[function] = target.kprobe(place(name, function))(handler)
                except sidestep.ProbeError:
                    continue

    words = [program, *([] if size is None else [str(size)]), "wait"]
    outcome = run_under(sidestep, run(*words), register, lambda: None)
    assert comparable(outcome) == comparable(expected), str(outcome)
    assert probes
    for function, probe in probes.items():
        assert probe.hits == counts(expected)[function]
        assert probe.faults == 0


@pytest.mark.parametrize(
    ("name", "size", "functions"),
    [("hammered", 0, ("f_000", "called")), ("forkthreads", 2000, ("work", "in_child"))],
)
def test_handlers_come_and_go(
    sidestep: ModuleType, build: Builder, run: Run, name: str, size: int, functions: tuple[str, ...]
) -> None:
    """Inlined ones, called ones, and such as call routines, while threads are in them."""
    counter, table = api.Counter(), api.Hash(64)

    @native
    def short(p, regs):  # type: ignore[no-untyped-def]
        counter.add(1)

    @native
    def long(p, regs):  # type: ignore[no-untyped-def]
        counter.add(1)
        table[regs.arg(0) & 15] += u64(read_u8(regs.sp)) & 1
        if regs.arg(0) & 0xFFF == 0:
            emit(Happened(value=regs.arg(0), thread=tid(), small=0))

    running = run(build(name), str(size), "wait", time_limit=90)
    running.expect("ready")
    hits = 0
    with attached(sidestep, running.pid) as target:

        def come_and_go() -> int:
            places = [place(name, function) for function in functions]
            probes = [api.Kprobe(where, pre_handler=each) for where in places for each in (short, long)]
            target.register_kprobes(probes)
            target.unregister_kprobes(probes)
            return sum(probe.hits for probe in probes)

        come_and_go()  # the handlers are compiled
        running.send()
        for _ in range(ROUNDS):
            hits += come_and_go()
        if size == 0:
            running.send()
        run_until_done(running)
        assert counter.value == hits
    assert nothing_left(running.pid)
    running.send()
    outcome = running.finish()
    assert outcome.status == 0, str(outcome)
    assert "wrong 0" in outcome.output, str(outcome)
    assert hits
    assert counter.value == hits


SCRIPT = """
import sys
print("ready", flush=True); sys.stdin.readline()
table = {str(n): [n] * (n % 50) for n in range(20000)}
print(sum(map(len, table.values())), sorted(table)[:5], flush=True)
print("done", flush=True); sys.stdin.readline()
"""


def test_one_handler_on_all_functions_of_libc(sidestep: ModuleType, run: Run, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    running = run(sys.executable, script)
    running.expect("ready")
    counter, by_place = api.Counter(), api.Hash(8192)

    @native
    def handler(p, regs):  # type: ignore[no-untyped-def]
        counter.add(1)
        by_place[p.addr] += 1

    with attached(sidestep, running.pid) as target:
        batch = target.kprobe("libc:*")(handler)
        assert len(batch.probes) > 1000
        running.send()
        running.expect(f"{sum(n % 50 for n in range(20000))} ['0', '1', '10', '100', '1000']")
        running.expect("done")
        target.enabled = False
        hits = {probe.addr: probe.hits for probe in batch.probes if probe.hits}
        assert counter.value == sum(probe.hits for probe in batch.probes)
        assert by_place.to_dict() == hits
        assert not sum(probe.faults for probe in batch.probes)
    assert nothing_left(running.pid)
    running.send()
    assert running.finish().status == 0


def test_only_the_flags_of_arithmetic_are_changed(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare
) -> None:
    """The trap flag would end the program, alignment checks, too."""

    @native
    def handler(p, regs):  # type: ignore[no-untyped-def]
        regs.flags = regs.flags | 0x40000 | 0x100 | 0x41

    name = "threads"
    outcome = run_under(
        sidestep,
        run(build(name), "wait"),
        lambda target: target.kprobe(place(name, "work"))(handler),
        lambda: None,
    )
    assert comparable(outcome) == comparable(bare(name)), str(outcome)


def test_a_handler_behind_a_record_sees_the_arguments(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare
) -> None:
    """Recording uses rcx and rdx; a second handler sees what the first has changed."""
    seen, changed = api.Hash(64), api.Counter()

    @native
    def first(p, regs):  # type: ignore[no-untyped-def]
        seen[regs.arg(2) & 7] += 1
        regs.cx = 4242

    @native
    def second(p, regs):  # type: ignore[no-untyped-def]
        if regs.arg(3) == 4242:
            changed.add(1)

    name = "sums"
    probes: list[Any] = []

    def probe(target: Any) -> None:
        target.trace(f"{place(name, 'sum_of_four')} c=$arg3:u64")
        probes.append(target.kprobe(place(name, "sum_of_four"))(first))
        probes.append(target.kprobe(place(name, "sum_of_four"))(second))

    outcome = run_under(sidestep, run(build(name), "wait"), probe, lambda: None)
    true = counts(bare(name))["sum_of_four"]
    assert counts(outcome)["sum_of_four"] == true
    assert seen.to_dict() == {3: true}
    assert changed.value == true == probes[1].hits


class Traced(api.Event):
    size: u64
    callers: api.stack(6)  # type: ignore[valid-type]


def test_an_event_with_a_backtrace(sidestep: ModuleType, build: Builder, run: Run, bare: Bare) -> None:
    @native
    def handler(p, regs):  # type: ignore[no-untyped-def]
        emit(Traced(callers=api.stack(4), size=regs.arg(0)))

    running = run(build("backtrace"), "wait")
    running.expect("ready")
    functions = [name for name in counts(bare("backtrace")) if ":" not in name]
    with attached(sidestep, running.pid) as target:
        for name in functions:
            target.kprobe(place("backtrace", name))(handler)
        running.send()
        run_until_done(running)
        events = list(target.events(timeout=0))
    assert events
    for event in events:
        assert event.args["callers"] == event.stack
        assert 1 <= len(event.stack) <= 4
        assert event.stack_symbols[0].split("+")[0] in functions
    assert max(len(event.stack) for event in events) >= 2
    running.send()
    assert comparable(running.finish()) == comparable(bare("backtrace"))
