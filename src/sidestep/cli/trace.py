"""`sidestep trace`: one line for each hit, as in the kernel's trace pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from sidestep.cli import figures
from sidestep.cli.options import Format
from sidestep.cli.output import plural, reader_may_leave, write_lines, write_table
from sidestep.cli.plan import Plan
from sidestep.cli.run import Ending, Run, execute

if TYPE_CHECKING:
    from sidestep.cli.progress import Progress
    from sidestep.events.decode import Event
    from sidestep.events.sinks import Sink
    from sidestep.kprobes.texts import Batch
    from sidestep.session import Target

_TURN = 0.1
"""Seconds after which events that came one by one are written together."""
_MOST_HELD = 4096
_PATIENCE = 0.5
"""Seconds for events that are left over at the end."""


def trace(
    plan: Plan,
    *,
    stack: Annotated[
        int,
        typer.Option(
            "--stack",
            metavar="FRAMES",
            min=0,
            max=64,
            help="Record a backtrace of up to this depth; it ends at code without frame pointers.",
        ),
    ] = 0,
    string_limit: Annotated[
        int,
        typer.Option(
            "--string-limit", metavar="BYTES", min=1, max=4096, help="Cut strings after this length."
        ),
    ] = 256,
) -> int:
    """Print a line for each hit.

    task-tid [cpu] seconds: event: (symbol+offset) name=value ...

    sidestep trace -p 4711 'libc:malloc size=$arg1:u64 if size > 4096'

    sidestep trace 'open path=+0($arg1):string' -- ls /tmp

    Ctrl-C, --duration or --limit end it: the process is restored and runs on.

    With -- COMMAND, results go to standard error (or -o FILE), and its exit code is passed on. Only that
    program and its libraries are probed, not what it executes: give it itself, without sh -c, env or sudo.
    """

    def register(target: Target, progress: Progress) -> Batch:
        return target.trace(
            *plan.probes,
            tid=plan.tid,
            comm=plan.comm,
            stack=stack,
            string_limit=string_limit,
            progress=progress,
        )

    writer = Writer()
    return execute(plan, register, writer.watch, writer.report)


class Writer:
    """Writes events as they come; they wait for _TURN at most, to be written together."""

    def __init__(self) -> None:
        self.written = 0
        self._sink: Sink | None = None

    def watch(self, run: Run) -> Ending:
        """Until the run should end."""
        from sidestep.cli.tasks import TaskNames
        from sidestep.events.sinks import JsonSink, TextSink

        if run.plan.format is Format.JSON:
            self._sink = JsonSink(run.stream)
            return self._watch(run, self._sink)
        names = TaskNames(run.target)
        self._sink = TextSink(run.stream, names)
        ending = self._watch(run, self._sink)
        names.settle()
        return ending

    def _watch(self, run: Run, sink: Sink) -> Ending:
        while True:
            self._take(run, sink, run.left(_TURN), lambda: run.overdue)
            ending = run.ending(self.written)
            if ending is not None:
                return ending

    def report(self, run: Run) -> None:
        """The last events, then a table for people: beside the events of a launched command, else on standard
        error."""
        sink = self._sink
        assert sink is not None
        if run.ended != "limit":
            # What was hit until the probes were out; in a flood, only as much as nobody has to wait for.
            patience = time.monotonic() + _PATIENCE
            self._take(run, sink, 0.0, lambda: time.monotonic() > patience)
        numbers = run.figures()
        matched = sum(figure.matched for figure in numbers.figures)
        unread = max(matched - numbers.lost - self.written, 0)
        if run.plan.format is Format.JSON:
            fields = figures.summary(run, numbers)
            with reader_may_leave(run.stream):
                sink.summary({**fields, "events": self.written, "unread": unread})
            return
        stream = run.stream if run.plan.choice.launched else sys.stderr
        last = f"{figures.footer(numbers, run.seconds)}, {plural(self.written, 'event')} shown"
        if unread:
            last += f", {unread:,} left unread at the end"
        write_table(stream, figures.COLUMNS, numbers.rows())
        write_lines(stream, [last])

    def _take(self, run: Run, sink: Sink, seconds: float, enough: Callable[[], bool]) -> None:
        """Writes what comes in that time, up to the limit; `enough` can end it earlier."""
        room = None if run.plan.limit is None else run.plan.limit - self.written
        held: list[Event] = []
        for event in run.target.events(timeout=seconds):
            held.append(event)
            if len(held) == room:
                break
            if len(held) >= _MOST_HELD:
                self._write(run, sink, held)
                room = None if room is None else room - len(held)
                held.clear()
                if enough():
                    break
        self._write(run, sink, held)

    def _write(self, run: Run, sink: Sink, events: list[Event]) -> None:
        if events:
            with reader_may_leave(run.stream):
                sink.write(events)
            self.written += len(events)
