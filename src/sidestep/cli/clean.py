"""`sidestep clean`: removes what a killed controller left in a process."""

from __future__ import annotations

import typer

from sidestep.cli.interrupt import Interrupt
from sidestep.cli.options import Invocation, NameOption, PidOption, choose_pid
from sidestep.cli.output import result_stream, write_lines


def clean(context: typer.Context, pid: PidOption = None, name: NameOption = None) -> None:
    """Remove what a killed Sidestep left in a process.

    Sessions whose controller is alive are not touched.
    """
    invocation: Invocation = context.obj
    invocation.refuse("clean")
    number = choose_pid(pid, name)
    from sidestep import clean as clean_process

    with Interrupt() as interrupt:
        interrupt.is_last()
        report = clean_process(number)
    with result_stream(None, launched=False) as stream:
        write_lines(stream, report.text.splitlines())
    if not report.complete:
        raise typer.Exit(1)
