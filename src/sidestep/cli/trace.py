"""`sidestep trace`: one line for each hit, as in the kernel's trace pipe."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from sidestep.cli import figures
from sidestep.cli.options import (
    Choice,
    CommOption,
    DurationOption,
    Format,
    FormatOption,
    Invocation,
    NameOption,
    OutputOption,
    PidOption,
    ProbesArgument,
    SeccompOption,
    ThreadOption,
)
from sidestep.cli.output import reader_may_leave, write_lines, write_table
from sidestep.cli.run import Ending, Plan, Run, execute

if TYPE_CHECKING:
    from sidestep.cli.progress import Progress
    from sidestep.events.decode import Event
    from sidestep.events.sinks import Sink
    from sidestep.session import Batch, Target

_TURN = 0.1
"""Seconds after which events that came one by one are written together."""
_MOST_HELD = 4096


def trace(
    context: typer.Context,
    probes: ProbesArgument = None,
    pid: PidOption = None,
    name: NameOption = None,
    duration: DurationOption = None,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="Detach after N events.")
    ] = None,
    output: OutputOption = None,
    format: FormatOption = Format.TEXT,
    tid: ThreadOption = None,
    comm: CommOption = None,
    stack: Annotated[
        int,
        typer.Option(
            "--stack",
            metavar="FRAMES",
            min=0,
            max=64,
            help="Record a backtrace of this depth.",
        ),
    ] = 0,
    string_limit: Annotated[
        int,
        typer.Option(
            "--string-limit", metavar="BYTES", min=1, max=4096, help="Cut strings after this length."
        ),
    ] = 256,
    allow_seccomp: SeccompOption = False,
) -> None:
    """Print a line for each hit.

    task-tid [cpu] seconds: event: (symbol+offset) name=value ...

    sidestep trace -p 4711 'libc:malloc size=$arg1:u64 if size > 4096'

    sidestep trace 'open path=+0($arg1):string' -- ls /tmp

    Ctrl-C, --duration or --limit end it: the process is restored and runs on.
    """
    invocation: Invocation = context.obj
    choice = Choice(pid, name, invocation.command)
    plan = Plan(choice, tuple(probes or ()), duration, limit, output, format, tid, comm, allow_seccomp)

    raise typer.Exit(run_trace(plan, stack=stack, string_limit=string_limit))


def run_trace(plan: Plan, *, stack: int = 0, string_limit: int = 256) -> int:
    """Traces as planned, with `stack` frames and strings of `string_limit` bytes. Returns the exit code."""

    def register(target: Target, progress: Progress) -> Batch:
        return target.trace(
            *plan.probes,
            tid=plan.tid,
            comm=plan.comm,
            stack=stack,
            string_limit=string_limit,
            progress=progress,
        )

    return execute(plan, register, _watch, _report)


def _watch(run: Run) -> Ending:
    """Writes events until the run should end; they wait for _TURN at most, to be written together."""
    sink = make_sink(run)
    written = 0
    while True:
        written += _take(run, sink, run.left(_TURN), written)
        ending = run.ending(written)
        if ending is not None:
            return ending


def _take(run: Run, sink: Sink, seconds: float, before: int) -> int:
    """Writes what comes in that time, up to the limit, `before` events of which were written already."""
    limit = run.plan.limit
    held: list[Event] = []
    number = 0
    for event in run.target.events(timeout=seconds):
        held.append(event)
        number += 1
        if limit is not None and before + number >= limit:
            break
        if len(held) >= _MOST_HELD:
            _write(run, sink, held)
            held.clear()
    _write(run, sink, held)
    return number


def make_sink(run: Run) -> Sink:
    from sidestep.events.sinks import JsonSink, TextSink

    return JsonSink(run.stream) if run.plan.format is Format.JSON else TextSink(run.stream, task_name)


def task_name(pid: int, tid: int) -> str:
    """The name of a thread as it is now, "" if it is gone. Not fit to be printed: it is the target's."""
    try:
        with open(f"/proc/{pid}/task/{tid}/comm", "rb") as file:
            return file.read().rstrip(b"\n").decode("utf-8", "backslashreplace")
    except OSError:
        return ""


def _write(run: Run, sink: Sink, events: list[Event]) -> None:
    if events:
        with reader_may_leave(run.stream):
            sink.write(events)


def _report(run: Run) -> None:
    """The last events, then a table for people: in the file of a launched command, else on standard error."""
    sink = make_sink(run)
    if run.ended != "limit":
        # What was hit until the probes were out: hits, events and losses agree.
        _take(run, sink, 0.0, 0)
    numbers = run.figures()
    if run.plan.format is Format.JSON:
        with reader_may_leave(run.stream):
            sink.summary(figures.summary(run.batch, numbers, run.seconds, run.ended))
        return
    stream = run.stream if run.plan.choice.launched else sys.stderr
    write_table(stream, figures.COLUMNS, numbers.rows())
    write_lines(stream, [figures.footer(numbers, run.seconds)])
