"""How the programs in tests/programs are driven, and what their output says. tests/programs/program.h has the rules."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from harness.running import Outcome, Running

BLOCKING = "blocking"
DONE = "done"
READY = "ready"


def go(running: Running) -> None:
    """Lets a program that has printed "ready" begin."""
    running.send()


def run_until_done(running: Running, while_blocked: Callable[[], object] = lambda: None) -> bool:
    """Reads what a program prints until it waits for its second line; False if it ends without waiting.

    A program that prints "blocking" has threads that wait in system calls: `while_blocked` is called, then they are
    let go.
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
    go(running)
    run_until_done(running)
    running.send()
    return running.finish()


def comparable(outcome: Outcome) -> tuple[list[str], int]:
    """What must be the same in every run: the output without pids and numbers that vary, and the status."""
    lines = []
    for line in outcome.output.splitlines():
        line = re.sub(r"^varying \d+ ", "varying N ", line)
        lines.append(re.sub(r"^count_by_pid \d+ ", "count_by_pid PID ", line))
    return lines, outcome.status


def counts(outcome: Outcome, *, launched: bool = False) -> dict[str, int]:
    """How often each function ran until the second wait; in all processes.

    Since the program was launched, or since its first wait. Functions of libraries only run a number of times that
    the program knows since its first wait.
    """
    found: Counter[str] = Counter()
    for kind, number, function in re.findall(
        r"^(count|varying|count_launched) (\d+) (.*)$", outcome.output, re.M
    ):
        if not (launched and ":" in function) and (launched or kind != "count_launched"):
            found[function] += int(number)
    return dict(found)


def counts_by_pid(outcome: Outcome) -> dict[str, dict[int, int]]:
    """The same by function and process, where the program tells."""
    found: dict[str, dict[int, int]] = {}
    for pid, number, function in re.findall(r"^count_by_pid (\d+) (\d+) (.*)$", outcome.output, re.M):
        found.setdefault(function, {})[int(pid)] = int(number)
    return found


def place(program: str, function: str) -> str:
    """Where a function that a program counts is, as the product wants it: `MODULE:FUNCTION`."""
    module, colon, rest = function.partition(":")
    if colon and not rest.startswith(":"):
        return function
    return f"{program}:{function}"
