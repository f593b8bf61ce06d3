"""What one hit costs: nanoseconds above the bare call, beside kernel uprobes and the machine's own floors.

Bare and probed batches follow each other in one process, which has a CPU of its own. Each repetition takes a
fresh process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import uprobes
from figures import Effort, Row, main
from victims import CPUS, VICTIM_CPU, Victim, use_other_cpus

import sidestep

NEVER = 1 << 60  # no call has such an argument
ARGUMENTS = "a=$arg1 b=$arg2"
REJECTED = f"{ARGUMENTS} if a > {NEVER}"
TEXT = "text=+0($arg1):string"
KERNEL_ARGUMENTS = "a=%di:u64 b=%si:u64"


@dataclass(frozen=True, slots=True)
class Case:
    """A probe of ours. `calls` make a batch; with `drained` their events fit into the ring."""

    what: str
    function: str
    probe: str = ""
    calls: int = 500_000
    records: bool = False
    drained: bool = False
    threads: int = 1
    goal: float | None = None
    beside: str = "event"  # the uprobe to compare with

    @property
    def goes_to_ring(self) -> bool:
        return self.records and " if " not in self.probe


@dataclass(frozen=True, slots=True)
class KernelCase:
    """A uprobe that records an event (into a buffer that is overwritten), or rejects it."""

    what: str
    function: str
    arguments: str = KERNEL_ARGUMENTS
    condition: str = ""
    calls: int = 20_000


CASES = (
    Case("count", "work", goal=2),
    Case("count, lea first", "work_lea", goal=2, beside="lea"),
    Case("count, mid-function", "work_middle_at", goal=2, beside="lea"),
    Case("count, two threads at once, one on each CPU", "work", threads=2, goal=2),
    Case("event: time, tid, two arguments", "work", ARGUMENTS, 20_000, records=True, drained=True, goal=15),
    Case("the same, ring full: the event is counted as lost", "work", ARGUMENTS, records=True),
    Case("event that a condition rejects", "work", REJECTED, records=True, beside="filter"),
    Case(
        "event with a text of 26 bytes", "work_text", TEXT, 3_000, records=True, drained=True, beside="text"
    ),
)

KERNEL_CASES = {
    "event": KernelCase("uprobe: event with two arguments", "work"),
    "lea": KernelCase("uprobe: the same, lea first (single-stepped)", "work_lea", calls=2_000),
    "filter": KernelCase("uprobe: event that a filter rejects", "work", condition=f"a > {NEVER}"),
    "text": KernelCase("uprobe: event with a text", "work_text", "text=+0(%di):string", calls=2_000),
}

FLOORS = {
    "floor_lock_inc": "floor: lock inc",
    "floor_lock_cmpxchg": "floor: lock cmpxchg and the load before it",
    "floor_cmpxchg": "floor: the same without lock",
    "floor_rdtsc": "floor: rdtsc",
    "floor_event": "floor: the least an event can be: place, time, tid, two words",
}


class Cost:
    """Nanoseconds above the bare call, from each repetition: of medians, and of the fastest batches."""

    def __init__(self) -> None:
        self.medians: list[float] = []
        self.least: list[float] = []

    def add(self, probed: Sequence[float], bare: Sequence[float]) -> None:
        self.medians.append(median(probed) - median(bare))
        self.least.append(min(probed) - min(bare))

    def row(self, what: str, goal: float | None = None, note: str = "") -> Row:
        return Row(what, median(self.medians), min(self.least), "ns", goal, note=note)


def batches(victim: Victim, function: str, calls: int, count: int, threads: int = 1) -> list[float]:
    """Nanoseconds a call; of a CPU, where several threads call at once."""
    if threads == 1:
        return victim.run(function, calls, count)
    os.sched_setaffinity(victim.pid, CPUS)
    each = calls * max(threads / len(CPUS), 1)  # calls that a CPU makes
    found = [victim.number("together", function, calls, threads) / each for _ in range(count)]
    os.sched_setaffinity(victim.pid, {VICTIM_CPU})
    return found


def hit(case: Case, victim: Victim, count: int, cost: Cost) -> None:
    """One repetition. Every hit must have been counted, and recorded or lost as the case has it."""
    bare = batches(victim, case.function, 500_000, count, case.threads)
    where = "work_middle" if case.function == "work_middle_at" else case.function
    offset = victim.number("address", case.function) - victim.number("address", where)
    text = f"p:hit victim:{where}{f'+{offset}' if offset else ''} {case.probe}"
    with sidestep.attach(victim.pid) as target:
        (probe,) = (target.trace if case.records else target.count)(text).probes
        probed: list[float] = []
        events = 0
        warm = 0
        if case.records:  # the ring's pages are there after a turn; a full ring is full
            for _ in range(6 if case.drained else 1):
                victim.run(case.function, case.calls, 1)
                events += sum(1 for _ in target.events(timeout=0)) if case.drained else 0
                warm += case.calls
        lost = probe.lost
        for _ in range(count):
            probed += batches(victim, case.function, case.calls, 1, case.threads)
            events += sum(1 for _ in target.events(timeout=0)) if case.drained else 0
        calls = case.calls * case.threads * count
        assert probe.hits == calls + warm, f"{case.what}: {probe.hits} hits of {calls + warm}"
        if case.drained:
            assert probe.lost == 0, f"{case.what}: a ring is smaller than {case.calls} events"
            assert events == calls + warm, f"{case.what}: {events} events of {calls + warm}"
        elif case.goes_to_ring:
            assert probe.lost - lost == calls, f"{case.what}: {probe.lost - lost} lost of {calls}"
    cost.add(probed, bare)


def kernel_hit(case: KernelCase, victim: Victim, count: int, cost: Cost) -> None:
    bare = batches(victim, case.function, 500_000, count)
    before = victim.number("address", case.function)
    with uprobes.uprobe(victim.pid, before, case.arguments, case.condition):
        probed = batches(victim, case.function, case.calls, count)
        assert uprobes.hits() == case.calls * count, f"{case.what}: {uprobes.hits()} hits"
    cost.add(probed, bare)


def measure(effort: Effort) -> Iterator[Row]:
    count = 5 if effort.quick else 15
    costs = {name: Cost() for name in (*(case.what for case in CASES), *KERNEL_CASES, *FLOORS)}
    use_other_cpus()
    with uprobes.mounted() as has_uprobes:
        kernel_cases = KERNEL_CASES if has_uprobes else {}
        for _ in effort.turns:
            with Victim(pinned=True) as victim:
                nothing = victim.run("floor_nothing", 500_000, count)
                for floor in FLOORS:
                    costs[floor].add(victim.run(floor, 500_000, count), nothing)
                for case in CASES:
                    hit(case, victim, count, costs[case.what])
                for name, kernel_case in kernel_cases.items():
                    kernel_hit(kernel_case, victim, count, costs[name])
    for case in CASES:
        own, note = costs[case.what], ""
        if kernel_cases and case.threads == 1:
            kernel = median(costs[case.beside].medians)
            times = kernel / max(median(own.medians), 0.1)
            note = f"a uprobe takes {kernel:,.0f} ns, {times:,.0f} times as long"
        yield own.row(f"hit: {case.what}", case.goal, note)
    for name, kernel_case in kernel_cases.items():
        yield costs[name].row(f"hit: {kernel_case.what}")
    for name, what in FLOORS.items():
        yield costs[name].row(what)


if __name__ == "__main__":
    main("The cost of a hit.", measure)
