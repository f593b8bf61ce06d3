"""`sidestep list`: the probes of every session in a process, in the kernel's format."""

from __future__ import annotations

import typer

from sidestep.cli.options import Invocation, NameOption, PidOption, choose_pid
from sidestep.cli.output import result_stream, say, write_lines


def list_probes(context: typer.Context, pid: PidOption = None, name: NameOption = None) -> None:
    """List the probes in a process.

    Those of all sessions: address, k or r, symbol+offset, module, state.
    """
    invocation: Invocation = context.obj
    invocation.refuse("list")
    number = choose_pid(pid, name)
    from sidestep import sessions_text

    text = sessions_text(number)
    if not text.strip():
        say("there are no probes in this process")
        return
    with result_stream(None, launched=False) as stream:
        write_lines(stream, text.splitlines())
