"""How the programs in tests/programs are driven and read. The rules are in tests/programs/program.h."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from harness.running import Outcome, Running

BLOCKING = "blocking"
DONE = "done"
READY = "ready"
COUNT = re.compile(r"^(count|varying|count_launched) (\d+) (.*)$", re.M)
COUNT_BY_PID = re.compile(r"^count_by_pid (\d+) (\d+) (.*)$", re.M)


def run_until_done(running: Running, while_blocked: Callable[[], object] = lambda: None) -> bool:
    """Reads what a program prints until it waits for its second line; False if it ends without waiting.

    A program that prints "blocking" has threads that wait in system calls: `while_blocked` is called,
    then they are let go.
    """
    while (line := running.next_line()) is not None:
        if line == BLOCKING:
            while_blocked()
            running.send()
        elif line == DONE:
            return True
    return False


def run_through(running: Running) -> Outcome:
    """A whole run of a program that waits."""
    running.expect(READY)
    running.send()
    run_until_done(running)
    running.send()
    return running.finish()


def comparable(outcome: Outcome) -> tuple[list[str], int]:
    """What is the same in every run: the output without pids and numbers that vary, and the status."""
    lines = []
    for line in outcome.output.splitlines():
        line = re.sub(r"^varying \d+ ", "varying N ", line)
        lines.append(re.sub(r"^count_by_pid \d+ ", "count_by_pid PID ", line))
    return lines, outcome.status


def counts(outcome: Outcome, *, launched: bool = False) -> dict[str, int]:
    """How often each function ran, in all processes, from the first wait (or the launch) to the second.

    How often functions of libraries run, a program knows only from its first wait on.
    """
    found: Counter[str] = Counter()
    for kind, number, function in COUNT.findall(outcome.output):
        if launched and is_in_library(function):
            continue
        if launched or kind != "count_launched":
            found[function] += int(number)
    return dict(found)


def counts_by_pid(outcome: Outcome) -> dict[str, dict[int, int]]:
    """How often each function ran in each process, where the program tells."""
    found: dict[str, dict[int, int]] = {}
    for pid, number, function in COUNT_BY_PID.findall(outcome.output):
        found.setdefault(function, {})[int(pid)] = int(number)
    return found


def is_in_library(function: str) -> bool:
    """Whether the name is MODULE:FUNCTION; `::` belongs to C++."""
    return re.match(r"\w+:(?!:)", function) is not None


def place(program: str, function: str, offset: int = 0) -> str:
    """Where an instruction of a function that a program counts is, as a probe text."""
    where = function if is_in_library(function) else f"{program}:{function}"
    return f'"{where}"+{offset:#x}' if offset else f'"{where}"'
