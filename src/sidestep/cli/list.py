"""`sidestep list`: the probes of every session in a process, in the kernel's format."""

from __future__ import annotations

from dataclasses import asdict

import typer

from sidestep.cli.options import Format, FormatOption, Invocation, NameOption, PidOption, choose_pid
from sidestep.cli.output import result_stream, say, write_json, write_lines


def list_probes(
    context: typer.Context, pid: PidOption = None, name: NameOption = None, format: FormatOption = Format.TEXT
) -> None:
    """List the probes in a process.

    Those of the controller that probes it, or of one that was killed: address, k or r, symbol+offset, module,
    state.
    """
    invocation: Invocation = context.obj
    invocation.refuse("list")
    number = choose_pid(pid, name)
    from sidestep.sessions import sessions_in, sessions_text

    with result_stream(None, launched=False) as stream:
        if format is Format.JSON:
            write_json(stream, [{"type": "session", **asdict(each)} for each in sessions_in(number)])
        elif text := sessions_text(number):
            write_lines(stream, text.splitlines())
        else:
            say("there are no probes in this process")
