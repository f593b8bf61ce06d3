"""`sidestep count`: a live table of hits and rates."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from sidestep.cli.figures import COLUMNS, Figures, footer, summary
from sidestep.cli.options import Format, UsageError
from sidestep.cli.output import say, width_of, write_json, write_lines
from sidestep.cli.plan import Plan
from sidestep.cli.run import Ending, Run, execute
from sidestep.cli.screen import Screen
from sidestep.cli.tables import render

if TYPE_CHECKING:
    from sidestep.cli.progress import Progress
    from sidestep.kprobes.texts import Batch
    from sidestep.session import Target

_FIRST = 0.3
"""Seconds until the table is shown for the first time."""
_LONGEST_INTERVAL = 86400.0
_POLL = 0.1
"""Seconds between two looks at the limit, and whether the program is still the same."""


def count(
    plan: Plan,
    *,
    top: Annotated[
        int | None,
        typer.Option("--top", metavar="ROWS", min=1, help="Show this many probes, those with most hits."),
    ] = None,
    interval: Annotated[
        float,
        typer.Option("--interval", metavar="SECONDS", min=0.1, help="Time between two updates of the table."),
    ] = 1.0,
) -> int:
    """Count hits, in a live table.

    On a terminal the table is live; into a file or a pipe goes the final one only.

    sidestep count -p 4711 'libc:*alloc*'

    sidestep count 'libc:write' 'libc:read if $arg3 > 4096' -- ls /tmp

    Ctrl-C, --duration or --limit end it: the process is restored and runs on.

    With -- COMMAND, results go to standard error (or -o FILE), and its exit code is passed on. Only that
    program and its libraries are probed, not what it executes: give it itself, without sh -c, env or sudo.
    """

    if not interval <= _LONGEST_INTERVAL:
        raise UsageError("--interval takes seconds, up to a day")

    def register(target: Target, progress: Progress) -> Batch:
        say_unused(plan.probes)
        return target.count(*plan.probes, tid=plan.tid, comm=plan.comm, progress=progress)

    def watch(run: Run) -> Ending:
        return _watch(run, interval, top)

    def report(run: Run) -> None:
        _report(run, top)

    return execute(plan, register, watch, report)


def _watch(run: Run, interval: float, top: int | None) -> Ending:
    """Draws the table, where that is possible, until the run should end."""
    screen = Screen(run.stream)
    # A launched command writes to the same terminal: a table in place would be torn.
    screen.live = screen.live and run.plan.format is Format.TEXT and not run.plan.choice.launched
    with ExitStack() as cleanup:
        cleanup.callback(screen.clear)
        descriptors = _end_of(run.target.pid, cleanup)
        numbers = run.figures()
        due = numbers.time + min(_FIRST, interval)
        while True:
            limited = run.plan.limit is not None
            run.interrupt.wait(run.left(min(_POLL, max(due - time.monotonic(), 0.0))), *descriptors)
            ending = run.ending(run.figures().total if limited else 0)
            if ending is not None:
                return ending
            if time.monotonic() < due:
                continue
            due = time.monotonic() + interval
            if screen.live:
                before, numbers = numbers, run.figures()
                rows = top if top is not None else max(screen.height - 2, 1)
                seconds = numbers.time - run.started
                screen.draw(table(numbers, numbers.rates(before), seconds, rows, screen.width))


def say_unused(texts: Sequence[str]) -> None:
    """Which arguments only `trace` would show: counting records nothing."""
    from sidestep.spec import only_recorded, parse

    for spec in map(parse, texts):
        if names := only_recorded(spec):
            say(f"{spec.where}: count does not record {', '.join(names)}, `sidestep trace` does")


def _end_of(pid: int, cleanup: ExitStack) -> list[int]:
    """A descriptor that becomes readable when the process ends; none where the kernel cannot give one."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return []
    cleanup.callback(os.close, descriptor)
    return [descriptor]


def table(
    numbers: Figures, rates: list[float], seconds: float, rows: int | None, width: int | None
) -> list[str]:
    """The table and the line below it; at most `rows` rows."""
    wanted = numbers.rows(rates)
    shown = wanted if rows is None else wanted[:rows]
    lines = render(COLUMNS, shown, width)
    last = footer(numbers, seconds, len(wanted) - len(shown))
    return [*lines, last if width is None else last[:width]]


def _report(run: Run, top: int | None) -> None:
    """The final table, with average rates; or the summary as JSON."""
    numbers = run.figures()
    if run.plan.format is Format.JSON:
        write_json(run.stream, [summary(run, numbers, top)])
        return
    lines = table(numbers, numbers.averages(run.seconds), run.seconds, top, width_of(run.stream))
    write_lines(run.stream, lines)
