"""A controller dies at every single step of attaching, arming, disarming and detaching.

    python -m faults.every_step [--only CASE] [--every N] [--stop]

For each case and each step N: the program is started, a controller works on it and is killed at step N (or
stopped and continued, or stopped and killed), what it left is taken away by `clean` or by attaching again,
and the program runs to its end. Its output and status must be those of a run without probes, and before that
it must be what it was: code, mappings, descriptors, signals; its children, too.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from faults.controllers import PHASES, Controllers, Report
from harness.build import Builder
from harness.programs import comparable, counts, place, run_through, run_until_done
from harness.running import Outcome, Running
from harness.stepper import disassemble
from harness.untouched import State, differences, read_state, remains
from sidestep.target.process.procfs import thread_state

TIME_LIMIT = 60.0


PATIENCE = 5.0  # seconds for threads to fall asleep


@dataclass(frozen=True, slots=True)
class Case:
    """A program, and what it is doing while the controller is there.

    `moment`: "ready" (it waits for a line), "working", or "blocked" (it said so, by "blocking").
    `still`: it does nothing by itself meanwhile, so nothing at all may have changed.
    `interruptible`: it waits in calls that are never restarted, and may be told EINTR if the controller dies
    between stopping a thread and looking at it.
    """

    name: str
    program: str
    moment: str
    size: int | None = None
    still: bool = True
    records: bool = False
    interruptible: bool = False


CASES = (
    Case("one thread, waits", "recursion", "ready"),
    Case("one thread, waits; events", "recursion", "ready", records=True),
    Case("one thread, works", "count", "working", 100_000_000, still=False),
    Case("eight threads, work", "threads", "working", 10_000_000, still=False),
    Case("eight threads, work; events", "threads", "working", 10_000_000, still=False, records=True),
    Case("signals", "signals", "working", 300, still=False),
    Case("read, in probed code", "blocked_syscall", "blocked"),
    Case("read of pipe, terminal, socket", "read_tty", "blocked", interruptible=True),
    Case("poll, one thread", "polling", "blocked"),
    Case("nanosleep, one thread", "sleeping", "blocked", still=False),
    Case("sleeps of six kinds", "nanosleep", "blocked", still=False),
    Case("futex", "futex", "blocked"),
    Case("epoll, select", "epoll", "blocked", interruptible=True),
    Case("sigwait", "sigwait", "blocked", interruptible=True),
    Case("a child that waits", "forked_early", "blocked"),
    Case("children, forking", "forkthreads", "working", 600, still=False),
    Case("handlers for faults", "faults", "ready"),
    Case("inside a handler for faults", "fault_waits", "blocked"),
    Case("eight threads that fault, forking", "fault_threads", "working", 1000, still=False),
)


@dataclass(slots=True)
class Tally:
    """What came out of a case."""

    case: Case
    steps: Counter[str] = field(default_factory=Counter)  # by phase
    interrupted: int = 0
    failures: list[str] = field(default_factory=list)

    def cells(self) -> list[str]:
        total = sum(self.steps.values())
        same = total - self.interrupted - len(self.failures)
        phases = [str(self.steps[phase]) for phase in PHASES]
        return [self.case.name, *phases, f"{same} of {total}", str(self.interrupted), str(len(self.failures))]


HEADINGS = ("target", *PHASES, "as without, and restored", "told EINTR", "wrong")


class Laboratory:
    """Runs cases; what they need is built once."""

    def __init__(self, build: Builder, folder: Path, controllers: Controllers) -> None:
        self._build, self._folder, self._controllers = build, folder, controllers
        self._bare: dict[Case, Outcome] = {}
        self._steps: dict[Case, int] = {}

    def _start(self, case: Case) -> Running:
        size = () if case.size is None else (str(case.size),)
        return Running([self._build(case.program), *size, "wait"], folder=self._folder, time_limit=TIME_LIMIT)

    def bare(self, case: Case) -> Outcome:
        if case not in self._bare:
            with self._start(case) as running:
                self._bare[case] = run_through(running)
        return self._bare[case]

    def places(self, case: Case) -> list[str]:
        """Two functions, and an instruction that may share a region with the first."""
        functions = [name for name in counts(self.bare(case)) if ":" not in name][:2]
        second = disassemble(self._build(case.program), {functions[0]})[1].offset
        places = [place(case.program, functions[0]), place(case.program, functions[0], second)]
        return [*places, *(place(case.program, function) for function in functions[1:])]

    def steps(self, case: Case) -> int:
        """The steps of a controller that comes to its end."""
        if case not in self._steps:
            self._steps[case] = self._count(case)
        return self._steps[case]

    def _count(self, case: Case) -> int:
        with self._start(case) as running:
            running.expect("ready")
            places, numbers = self.places(case), list[int]()

            def look() -> None:
                if not numbers:
                    report = self._controllers.run(
                        running.pid, places, records=case.records, at=0, number=signal.SIGKILL
                    )
                    assert report.ended == "done", report
                    numbers.append(report.steps)

            self._during(case, running, look)
        return numbers[0]

    def _during(self, case: Case, running: Running, work: Callable[[], None]) -> None:
        """Work while the program, which waits for its first line, is in the case's moment; then let it go to
        its end."""
        if case.moment == "ready":
            work()
        running.send()
        if case.moment == "working":
            work()
        run_until_done(running, work)
        running.send()

    def run(self, case: Case, at: int, then: str, tally: Tally) -> bool:
        """One run with a fault at step `at`; False if the controller came to its end before."""
        places, expected = self.places(case), self.bare(case)
        with self._start(case) as running:
            running.expect("ready")
            reports: list[Report] = []
            wrong: list[str] = []

            def meddle() -> None:
                if not reports:
                    reports.append(self._meddle(case, running, places, at, then, wrong))

            self._during(case, running, meddle)
            outcome = running.finish()
        (report,) = reports
        if report.phase is None and report.ended == "done":
            return False
        assert report.phase is not None, report.ended
        tally.steps[report.phase] += 1
        same = comparable(outcome) == comparable(expected)
        if not same and case.interruptible and told_interrupted(outcome, expected):
            tally.interrupted += 1
            same = True
            wrong = [change for change in wrong if not change.startswith("thread ")]  # it went on
        if not same:
            wrong.append(str(outcome))
        if wrong:
            tally.failures.append("\n".join([f"{case.name}: step {at} ({report.step}), {then}", *wrong]))
        return True

    def _meddle(
        self, case: Case, running: Running, places: list[str], at: int, then: str, wrong: list[str]
    ) -> Report:
        before = [read_state(running.pid)] if not case.still else [*map(at_rest, family(running.pid))]
        number = signal.SIGKILL if then in ("clean", "attach") else signal.SIGSTOP
        report = self._controllers.run(running.pid, places, records=case.records, at=at, number=number)
        if report.ended == "stopped":
            report = self._controllers.signal(signal.SIGCONT if then == "continue" else signal.SIGKILL)
        if report.ended not in ("done", "killed"):
            wrong.append(f"the controller: {report.ended}")
        if report.ended == "killed":
            cleaned = self._controllers.clean(running.pid, by_attaching=then == "attach")
            if cleaned != "done":
                wrong.append(f"cleaning: {cleaned}")
        wrong += changes(before, case.still)
        return report


def changes(before: Iterable[State], still: bool) -> list[str]:
    found = []
    for state in before:
        try:
            # A thread that is just coming or going in sigwait shows another mask.
            after = at_rest(state.pid) if still else read_state(state.pid)
        except (FileNotFoundError, ProcessLookupError):
            continue  # a child that has ended; of the program itself its output tells
        found += (differences if still else remains)(state, after)
    return found


def at_rest(pid: int) -> State:
    """The state of a process when all its threads sleep: they say that they wait right before they do."""
    before = read_state(pid)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        time.sleep(0.002)
        asleep = all(thread_state(pid, tid) == "S" for tid in before.threads)
        after = read_state(pid)
        if asleep and not differences(before, after):
            return after
        before = after
    return before


def family(pid: int) -> Iterator[int]:
    """A process and its children."""
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        yield from map(int, (task / "children").read_text().split())


def told_interrupted(outcome: Outcome, expected: Outcome) -> bool:
    """Whether the only difference is that calls returned EINTR."""
    told, right = outcome.output.splitlines(), expected.output.splitlines()
    different = [(line, other) for line, other in zip(told, right, strict=False) if line != other]
    eintr = {("-1", None), ("4", "0")}
    return (
        outcome.status == expected.status
        and len(told) == len(right)
        and any(line == "errno 4" for line, _ in different)
        and all(
            line.split()[0] == other.split()[0]
            and ((line.split()[1], None) in eintr or (line.split()[1], other.split()[1]) in eintr)
            for line, other in different
        )
    )


ENDINGS = ("clean", "attach")
STOPPED_ENDINGS = ("continue", "kill")


def every_step(laboratory: Laboratory, case: Case, every: int, first: int, endings: tuple[str, ...]) -> Tally:
    tally = Tally(case)
    at = first
    while laboratory.run(case, at, endings[at // every % len(endings)], tally):
        at += every
    return tally


def sample(laboratory: Laboratory, case: Case, size: int, seed: int, endings: tuple[str, ...]) -> Tally:
    """Faults at `size` steps, one in each of as many stretches of the whole."""
    tally = Tally(case)
    steps = laboratory.steps(case)
    choice = random.Random(f"{case.name} {seed}")
    for number in range(size):
        at = 1 + int((number + choice.random()) * steps / size)
        laboratory.run(case, at, endings[number % len(endings)], tally)
    return tally


def table(tallies: Iterable[Tally]) -> str:
    rows = [list(HEADINGS), ["---", *["---:"] * (len(HEADINGS) - 1)], *(tally.cells() for tally in tallies)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", help="cases whose name contains this")
    parser.add_argument("--every", type=int, default=1, help="only each Nth step")
    parser.add_argument("--first", type=int, default=1, help="the step to begin with")
    parser.add_argument("--stop", action="store_true", help="SIGSTOP in place of SIGKILL")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    tallies = []
    with tempfile.TemporaryDirectory() as folder, Controllers() as controllers:
        laboratory = Laboratory(Builder(Path(folder)), Path(folder), controllers)
        for case in CASES:
            if options.only is None or options.only in case.name:
                endings = STOPPED_ENDINGS if options.stop else ENDINGS
                tally = every_step(laboratory, case, options.every, options.first, endings)
                tallies.append(tally)
                print(" | ".join(tally.cells()), *tally.failures, sep="\n", file=sys.stderr, flush=True)
                for errors in Path(folder).glob("errors.*"):
                    errors.unlink()
    print(table(tallies), end="")
    sys.exit(any(tally.failures for tally in tallies))


if __name__ == "__main__":
    main()
