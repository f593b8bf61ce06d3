"""Many probes at once: how long it takes, and how long the target stands still.

The pause is measured twice. From inside: the longest time that a thread which only looks at the clock did not
run; on a busy machine that is also the scheduler's doing, so the longest gap of half a second without probes
stands beside it. And by the controller: from before the first thread is stopped until all are let go.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any
from unittest.mock import patch

import many
from figures import Effort, Row, main, of
from victims import BUILD, VICTIM_CPU, Victim, program, use_other_cpus

import sidestep
from sidestep.target.process import process
from sidestep.target.process.stop import stopped as original

GLOBS = {10: "many_0000?", 100: "many_000??", 1_000: "many_00???", 10_000: "many_0????"}
THREADS = 64  # of which all but the one that looks at the clock, and the main one, wake up each millisecond
GOALS = {"install": 2_000.0, "pause": 100.0, "remove": 1_000.0}  # ms, for 10,000 probes

Times = dict[str, list[float]]


class Stops:
    """How long each stop of the target took, in milliseconds, as the controller sees it."""

    def __init__(self) -> None:
        self.lengths: list[float] = []

    def take(self) -> list[float]:
        taken, self.lengths = self.lengths, []
        return taken

    @contextmanager
    def timed(self) -> Iterator[Stops]:
        """Puts a clock around the product's own way to stop a process, for the time of the `with`."""

        @contextmanager
        def stopped(*arguments: Any) -> Iterator[object]:
            began = time.perf_counter()
            try:
                with original(*arguments) as stop:
                    yield stop
            finally:
                self.lengths.append(1e3 * (time.perf_counter() - began))

        with patch.object(process, "stopped", stopped):
            yield self


def gap(victim: Victim) -> float:
    """Milliseconds: the longest time the victim's clock thread did not run since this was last asked."""
    return victim.number("gap") / 1e6


@contextmanager
def timed(name: str, times: Times, victim: Victim, stops: Stops) -> Iterator[None]:
    """Times what is done in the `with`, and the pauses in it."""
    gap(victim)
    stops.take()
    began, cpu = time.perf_counter(), time.process_time()
    yield
    times[name].append(1e3 * (time.perf_counter() - began))
    times[f"{name}: CPU"].append(1e3 * (time.process_time() - cpu))
    times[f"{name}: inside"].append(gap(victim))
    times[f"{name}: outside"].append(max(stops.take(), default=0.0))


def one(probes: int, threads: int, times: Times, stops: Stops) -> None:
    """Install, remove, install again, detach: in a fresh victim."""
    library = many.build(BUILD, max(GLOBS))
    with Victim(library) as victim:
        spinner = victim.number("spin")
        if threads > 2:
            victim.ask("sleepers", threads - 2)
        use_other_cpus()
        os.sched_setaffinity(spinner, {VICTIM_CPU})
        time.sleep(0.05)
        gap(victim)
        time.sleep(0.5)
        times["undisturbed"].append(gap(victim))
        target = sidestep.attach(victim.pid)
        with target:
            with timed("install", times, victim, stops):
                batch = target.count(f"libmany*:{GLOBS[probes]}")
            times["refused"].append(len(batch.refused))
            assert len(batch.probes) + len(batch.refused) == probes, f"{len(batch.probes)} of {probes} probes"
            victim.ask("all")
            hits = [probe.hits for probe in batch.probes]
            assert min(hits) >= 1, f"{hits.count(0)} probes without a hit"
            with timed("remove", times, victim, stops):
                target.unregister_kprobes(batch.probes)
            with timed("install again", times, victim, stops):
                target.count(f"libmany*:{GLOBS[probes]}")
            with timed("detach", times, victim, stops):
                target.detach()
        victim.ask("all")


def measure(effort: Effort) -> Iterator[Row]:
    program()
    with Stops().timed() as stops:
        for threads in (2, THREADS):
            for probes in GLOBS:
                if effort.quick and probes == 1_000:
                    continue
                times: Times = defaultdict(list)
                for _ in effort.turns:
                    one(probes, threads, times, stops)
                yield from rows(probes, threads, times)


def rows(probes: int, threads: int, times: Times) -> Iterator[Row]:
    goals = GOALS if probes == max(GLOBS) else {}
    subject = f"batch: {probes:,} probes, {threads} threads"
    refused = f"{max(times['refused']):.0f} refused; " if any(times["refused"]) else ""
    cpu, again = median(times["install: CPU"]), median(times["install again"])
    note = f"{refused}{cpu:,.0f} ms of CPU time; {again:,.0f} ms when the code was analysed before"
    yield of(f"{subject}: install", times["install"], "ms", goals.get("install"), note)
    outside, undisturbed = median(times["install: outside"]), median(times["undisturbed"])
    note = f"from outside {outside:.1f} ms; without probes {undisturbed:.1f} ms"
    yield of(f"{subject}: pause, installing", times["install: inside"], "ms", goals.get("pause"), note)
    cpu, detach = median(times["remove: CPU"]), median(times["detach"])
    note = f"{cpu:,.0f} ms of CPU time; detaching with all of them {detach:,.0f} ms"
    yield of(f"{subject}: remove", times["remove"], "ms", goals.get("remove"), note)
    note = f"from outside {median(times['remove: outside']):.1f} ms"
    yield of(f"{subject}: pause, removing", times["remove: inside"], "ms", goals.get("pause"), note)


if __name__ == "__main__":
    main("Many probes at once.", measure)
