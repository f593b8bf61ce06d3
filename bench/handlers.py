"""What a native handler costs: nanoseconds a hit above the bare call, beside the same work in C, beside
kernel uprobes, bpftrace and frida's CModule where they can be used; milliseconds to compile one.

As in hit.py, bare and probed batches follow each other in one process, which has a CPU of its own.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import bpf
import gum
import uprobes
from figures import Effort, Row, main, of
from hit import KERNEL_CASES, Cost, batches, kernel_hit
from victims import Victim, use_other_cpus

import sidestep
from sidestep import Counter, Event, Hash, Histogram, Kprobe, emit, native, u64
from sidestep.compiler.compiled import compile_native
from sidestep.compiler.native import NativeFunction

FUNCTION = "work"
KEYS = 1000
CALLS = 500_000
TRAPS = 20_000  # calls, where a hit takes a microsecond or more
IN_RING = 20_000  # calls whose events fit into the ring
FURTHER = 8  # handlers that are compiled after the first


class Hit(Event):
    first: u64
    second: u64
    third: u64


@dataclass(frozen=True, slots=True)
class Case:
    """A handler; `same` is the victim's function that does the same in C."""

    what: str
    same: str
    goal: float
    beside: str = "event"
    calls: int = CALLS
    threads: int = 1


CASES = (
    Case("a counter", "c_counter", 3),
    Case("a histogram of an argument", "c_histogram", 6),
    Case(f"a hash with {KEYS:,} keys", "c_hash", 20),
    Case("an event of three fields", "c_event", 20, calls=IN_RING),
    Case("a filter that rejects", "c_filter", 2, beside="filter"),
    Case("a counter, two threads at once, one on each CPU", "c_counter", 6, threads=2),
    Case("a counter, 16 threads, on each CPU", "c_counter", 6, calls=CALLS // 4, threads=16),
    Case(f"a hash with {KEYS:,} keys, 16 threads, on each CPU", "c_hash", 40, calls=CALLS // 4, threads=16),
)


class Work(NamedTuple):
    """A handler with maps of its own: a map belongs to one session. `total`: the hits that the maps have
    seen, None where they see none."""

    handler: NativeFunction
    total: Callable[[], int | None]


def work_for(case: Case) -> Work:
    counter, histogram, table = Counter(), Histogram(), Hash(2 * KEYS)

    @native
    def count(p: Any, regs: Any) -> Any:
        counter.add(1)

    @native
    def sizes(p: Any, regs: Any) -> Any:
        histogram.add(regs.arg(0))

    @native
    def hashed(p: Any, regs: Any) -> Any:
        table[regs.arg(0) % KEYS + 1] += 1

    @native
    def event(p: Any, regs: Any) -> Any:
        first = regs.arg(0)
        emit(Hit(first=first, second=first * 2, third=7))

    @native
    def filtered(p: Any, regs: Any) -> Any:
        first = regs.arg(0)
        if first > 1 << 60:
            emit(Hit(first=first, second=first * 2, third=7))

    return {
        "c_counter": Work(count, lambda: counter.value),
        "c_histogram": Work(sizes, lambda: histogram.count),
        "c_hash": Work(hashed, lambda: sum(table.to_dict().values())),
        "c_event": Work(event, lambda: None),
        "c_filter": Work(filtered, lambda: None),
    }[case.same]


def hit(case: Case, victim: Victim, count: int, cost: Cost, in_c: Cost) -> None:
    """One repetition. Every hit must have been counted, without a fault; no event may be lost."""
    rounds = case.calls if case.threads > 2 else CALLS
    bare = batches(victim, FUNCTION, rounds, count, case.threads)
    in_c.add(batches(victim, case.same, rounds, count, case.threads), bare)
    work = work_for(case)
    with sidestep.attach(victim.pid) as target:
        probe = Kprobe(f"victim:{FUNCTION}", pre_handler=work.handler)
        target.register_kprobe(probe)
        emits = case.same == "c_event"
        warm = 6 if emits else 1  # the ring's pages are there after a turn
        probed: list[float] = []
        events = 0
        for turn in range(warm + count):
            found = batches(victim, FUNCTION, case.calls, 1, case.threads)
            probed += found if turn >= warm else []
            events += sum(1 for _ in target.events(timeout=0)) if emits else 0
        calls = case.calls * case.threads * (warm + count)
        assert (probe.hits, probe.faults) == (calls, 0), f"{case.what}: {probe.hits} hits of {calls}"
        assert work.total() in (calls, None), f"{case.what}: the maps saw {work.total()} hits of {calls}"
        assert (events, target.lost) == (calls if emits else 0, 0), f"{case.what}: {events} events"
    cost.add(probed, bare)


Beside = Callable[[str, Victim, str, int], AbstractContextManager[None]]


class Tool(NamedTuple):
    """Another tool: how it does the same, and what that costs, by the victim's function."""

    works: Beside
    costs: dict[str, Cost]


def other_tool(tool: Beside, case: Case, victim: Victim, count: int, cost: Cost) -> None:
    """One repetition of the same work, done by another tool."""
    bare = batches(victim, FUNCTION, CALLS, count)
    with tool(case.same, victim, FUNCTION, TRAPS * count):
        probed = batches(victim, FUNCTION, TRAPS, count)
    cost.add(probed, bare)


def compile_times() -> tuple[float, list[float], list[float]]:
    """Milliseconds: the first handler of a process, with the compiler's start; each further one; all of them
    from the cache."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        further, cached = [], []
        cases = [CASES[number % len(CASES)] for number in range(FURTHER + 1)]
        handlers = [_different(work_for(case).handler, number) for number, case in enumerate(cases)]
        first = _compile_time(handlers[0])
        further += [_compile_time(handler) for handler in handlers[1:]]
        cached += [_compile_time(handler) for handler in handlers]
    return first, further, cached


def _different(handler: NativeFunction, number: int) -> NativeFunction:
    """The handler with a constant of its own, so that no two are the same."""

    @native
    def other(p: Any, regs: Any) -> Any:
        handler(p, regs)
        regs.r15 = number

    return other


def _compile_time(handler: NativeFunction) -> float:
    began = time.perf_counter()
    compile_native(handler.representation)
    return (time.perf_counter() - began) * 1e3


def measure(effort: Effort) -> Iterator[Row]:
    first, further, cached = compile_times()
    yield of("native handler: compile the first", [first], "ms", 150)
    yield of("native handler: compile a further one", further, "ms", 5)
    yield of("native handler: from the cache", cached, "ms", 10)
    count = 5 if effort.quick else 15
    costs = {case.what: (Cost(), Cost()) for case in CASES}
    kernel = {case.beside: Cost() for case in CASES}
    alone = [case for case in CASES if case.threads == 1]
    use_other_cpus()
    with uprobes.mounted() as has_uprobes:
        tools: dict[str, Tool] = {}
        if has_uprobes and bpf.is_there():
            tools["bpftrace"] = Tool(bpf.traced, {same: Cost() for same in bpf.PROGRAMS})
        if gum.is_there():
            tools["frida's CModule"] = Tool(gum.intercepted, {same: Cost() for same in gum.PROGRAMS})
        for _ in effort.turns:
            with Victim(pinned=True) as victim:
                for case in CASES:
                    hit(case, victim, count, *costs[case.what])
                for name in kernel if has_uprobes else ():
                    kernel_hit(KERNEL_CASES[name], victim, count, kernel[name])
                for tool in tools.values():
                    for case in alone:
                        if case.same in tool.costs:
                            other_tool(tool.works, case, victim, count, tool.costs[case.same])
    for case in CASES:
        own, in_c = costs[case.what]
        note = f"{median(in_c.medians):.1f} ns in C"
        if has_uprobes and case.threads == 1:
            note += f", {median(kernel[case.beside].medians):,.0f} ns by a uprobe"
        for name, tool in tools.items():
            if case.threads == 1 and case.same in tool.costs:
                note += f", {median(tool.costs[case.same].medians):,.0f} ns by {name}"
        yield own.row(f"native handler: {case.what}", case.goal, note)


if __name__ == "__main__":
    main("The cost of native handlers.", measure)
