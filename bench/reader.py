"""How many events a second the reader keeps up with; each must be delivered, or counted as lost.

Two threads of the victim call a function whose events have time, tid and two arguments. First at full speed,
on all CPUs and so in competition with the reader; then so many calls each millisecond, more from run to run,
until events are lost.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median
from typing import Protocol

from figures import Effort, Row, main
from start import environment
from victims import BUILD, Victim, program

import sidestep

PROBE = "p:hit victim:work a=$arg1 b=$arg2"
GOAL = 3.0  # million events a second
STEPS = [
    0.05,
    *(tenths / 10 for tenths in (1, 2, 3, 4, 6, 8, 10, 12, 15, 20, 25, 30, 40, 60, 80, 120)),
]  # M/s
THREADS = 2
LONGEST_SUMMARY = 1 << 16  # bytes

Take = Callable[[sidestep.Target], int]


class Run(Protocol):
    """Lets a victim obey a command, which fires events, and reads them."""

    def __call__(self, *command: object, fired: int, expected: float = 0.0) -> Outcome: ...


def iterate(target: sidestep.Target) -> int:
    """What `for event in target.events()` sees in a moment."""
    return sum(1 for _ in target.events(timeout=0))


def look_at_arguments(target: sidestep.Target) -> int:
    """The same, with the values asked for."""
    return sum(1 for event in target.events(timeout=0) if event.args)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one run: what was fired, and what became of it; `seconds` until the last event was delivered."""

    fired: int
    delivered: int
    lost: int
    seconds: float
    late: float  # seconds that the victim took longer than it was to take
    cpu: float  # seconds of CPU time that the reader took

    @property
    def rate(self) -> float:
        """Millions a second."""
        return self.delivered / self.seconds / 1e6


def read(*command: object, take: Take, fired: int, expected: float = 0.0) -> Outcome:
    """Read while a victim obeys a command in which `fired` events are fired, in `expected` seconds."""
    with Victim() as victim, sidestep.attach(victim.pid) as target:
        (probe,) = target.trace(PROBE).probes
        answers: list[list[str]] = []

        def obey() -> None:
            answers.extend(victim.ask(*command))

        waiting = threading.Thread(target=obey)
        began, cpu = time.perf_counter(), time.process_time()
        waiting.start()
        delivered = 0
        while waiting.is_alive():
            got = take(target)
            delivered += got
            if not got:
                time.sleep(0.0005)
        waiting.join()
        while got := take(target):
            delivered += got
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        assert probe.hits == fired, f"{probe.hits} hits of {fired}"
        assert delivered + probe.lost == fired, f"{delivered} delivered + {probe.lost} lost != {fired} fired"
        late = int(answers[0][0]) / 1e9 - expected
        return Outcome(fired, delivered, probe.lost, seconds, late, cpu)


def trace(*command: object, fired: int, expected: float = 0.0) -> Outcome:
    """The same with `sidestep trace --format json`, into a file.

    What it leaves unread when it ends in time is lost, too.
    """
    output = BUILD / "events.json"
    before = getrusage(RUSAGE_CHILDREN)
    with Victim() as victim:
        words = [sys.executable, "-m", "sidestep", "trace", "--format", "json", "-o", str(output)]
        victim.tell("first", "work")
        with subprocess.Popen([*words, "-p", str(victim.pid), PROBE], env=environment()) as process:
            try:
                victim.wait_for(process)
                time.sleep(0.1)
                began = time.perf_counter()
                late = victim.number(*command) / 1e9 - expected
                process.send_signal(signal.SIGINT)
                process.wait(120)
            finally:
                process.kill()
        seconds = time.perf_counter() - began
        used = getrusage(RUSAGE_CHILDREN)
    with output.open("rb") as file:
        file.seek(-min(output.stat().st_size, LONGEST_SUMMARY), os.SEEK_END)
        summary = json.loads(file.read().splitlines()[-1])
    output.unlink()
    (probe,) = summary["probes"]
    events, lost, unread = summary["events"], probe["lost"], summary.get("unread", 0)
    assert fired < probe["hits"] <= fired + 2, f"{probe['hits']} hits of {fired}"  # `first` fired one or two
    assert events + lost + unread == probe["hits"], f"{events} events, {lost} lost, {unread} unread"
    cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    return Outcome(probe["hits"], events, lost + unread, seconds, late, cpu)


def keeps_up(run: Run, milliseconds: int, start: float) -> tuple[float, float]:
    """Millions of events a second: the highest step without a loss, and what arrived at the next one."""
    best = 0.0
    for rate in (step for step in STEPS if step >= start or step == STEPS[0]):
        each = round(rate * 1000 / THREADS)
        seconds = milliseconds / 1000
        command = ("pace", "work", each, milliseconds, THREADS)
        outcome = run(*command, fired=each * THREADS * milliseconds, expected=seconds)
        if outcome.lost or outcome.late > seconds / 4:
            return best, outcome.rate
        best = rate
    return best, best


def measure(effort: Effort) -> Iterator[Row]:
    program()
    calls = 3_000_000 if effort.quick else 50_000_000
    milliseconds = 300 if effort.quick else 1_000
    for name, run in RUNS.items():
        outcomes = [run("together", "work", calls, THREADS, fired=calls * THREADS) for _ in effort.turns]
        rates = [outcome.rate for outcome in outcomes]
        lost = sum(outcome.lost for outcome in outcomes) / sum(outcome.fired for outcome in outcomes)
        cpu = median(outcome.cpu / outcome.delivered for outcome in outcomes)
        note = f"{lost:.0%} lost and counted; {1e6 * cpu:.2f} us of CPU time for each that arrived"
        yield Row(
            f"reader: {name}, {THREADS} threads at full speed", median(rates), max(rates), "M/s", note=note
        )
        kept = [keeps_up(run, milliseconds, median(rates) / 4) for _ in effort.turns]
        note = f"at the next step {median(over for _, over in kept):.2f} M/s arrived"
        best = [rate for rate, _ in kept]
        yield Row(f"reader: {name}, without a loss", median(best), max(best), "M/s", GOAL, True, note)


RUNS: dict[str, Run] = {
    "events()": partial(read, take=iterate),
    "events() with their arguments": partial(read, take=look_at_arguments),
    "sidestep trace, as JSON": trace,
}

if __name__ == "__main__":
    main("What the reader keeps up with.", measure)
