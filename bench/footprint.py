"""What a target notes of Sidestep: memory, and pauses where few probes come and go."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator
from statistics import median

import many
from batch import THREADS, Stops, Times, gap
from figures import Effort, Row, main, of
from victims import BUILD, OTHER_CPUS, VICTIM_CPU, Victim, program, use_other_cpus

import sidestep

MILLIONS = 1 << 20


def growth(effort: Effort) -> Iterator[Row]:
    """How much the target's resident memory grows by 100 probes, all of them hit."""
    library = many.build(BUILD, 10_000)
    for what, records in (("count", False), ("events, two arguments", True)):
        grown, private, left = [], [], []
        for _ in effort.turns:
            with Victim(library, pinned=True) as victim:
                victim.ask("all")
                before, before_private = victim.memory("Rss"), victim.memory("Private_Dirty")
                with sidestep.attach(victim.pid) as target:
                    glob = "libmany*:many_000??"
                    batch = target.trace(f"{glob} $arg1 $arg2") if records else target.count(glob)
                    victim.ask("all")
                    grown.append((victim.memory("Rss") - before) / MILLIONS)
                    private.append((victim.memory("Private_Dirty") - before_private) >> 10)
                left.append((victim.memory("Private_Dirty") - before_private) >> 10)
                assert len(batch.probes) + len(batch.refused) == 100
        note = f"{max(private)} KB of it changed or of its own, {max(left)} KB after detaching"
        yield of(f"target: memory of 100 probes, {what}", grown, "MB", 2, note)


def pauses(effort: Effort) -> Iterator[Row]:
    """Attaching and detaching without a probe, and with one: how long the target stands still."""
    with Stops().timed() as stops:
        for threads in (1, THREADS):
            for probe in (False, True):
                times: Times = defaultdict(list)
                for _ in effort.turns:
                    with Victim(pinned=True) as victim:
                        _pause(victim, threads, probe, times, stops)
                subject = f"{'one probe' if probe else 'no probe'}, threads: {threads}"
                outside, total = median(times["outside"]), median(times["total"])
                note = f"from outside {outside:.1f} ms; {total:.1f} ms from the first line to the last"
                goal = 5.0 if threads == THREADS and not probe else None
                yield of(f"pause: attach, detach, {subject}", times["inside"], "ms", goal, note)


def _pause(victim: Victim, threads: int, probe: bool, times: Times, stops: Stops) -> None:
    if threads > 1:
        os.sched_setaffinity(victim.pid, OTHER_CPUS)
        victim.ask("sleepers", threads - 2)
        spinner = victim.number("spin")
        os.sched_setaffinity(spinner, {VICTIM_CPU})
        gap(victim)
    else:
        victim.tell("stare", 1_000)
    stops.take()
    began = time.perf_counter()
    with sidestep.attach(victim.pid) as target:
        if probe:
            target.count("victim:work")
    times["total"].append(1e3 * (time.perf_counter() - began))
    times["inside"].append(gap(victim) if threads > 1 else int(victim.answer()[0][0]) / 1e6)
    times["outside"].append(max(stops.take(), default=0.0))


def measure(effort: Effort) -> Iterator[Row]:
    program()
    use_other_cpus()
    yield from growth(effort)
    yield from pauses(effort)


if __name__ == "__main__":
    main("Memory and pauses of a target.", measure)
