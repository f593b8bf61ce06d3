"""How a target is had: `attach()` to a running process, `launch()` of a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import IO, Any

from sidestep import errors
from sidestep.errors import TargetError
from sidestep.session import Target
from sidestep.target.process import process as linux
from sidestep.target.process import procfs, remains
from sidestep.target.process.company import refuse_company
from sidestep.target.process.turns import in_turn


def attach(target: int | str, *, allow_seccomp: bool = False, ring_size: int | None = None) -> Target:
    """A running process by pid (here, or the one that it has in its own namespace) or by name. What a dead
    controller left in it is taken out first.

    Raises TargetError: no such process, several of that name, not permitted, traced by somebody else, probed
    by another controller, and so on. `ring_size` is in bytes, for each CPU.
    """
    pid = procfs.choose(target)
    try:
        process = in_turn(lambda: linux.attach(pid, allow_seccomp=allow_seccomp))
    except TargetError as error:
        if error.reason is errors.ALREADY_TRACED:
            refuse_company(pid)
        raise
    try:
        remains.await_lent_threads(pid)
        refuse_company(pid)
        if remains.sessions(pid):
            remains.clean(pid)
        return Target(process, ring_size=ring_size)
    except BaseException:
        process.close()
        raise


def launch(
    arguments: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    stdin: int | IO[Any] | None = None,
    stdout: int | IO[Any] | None = None,
    stderr: int | IO[Any] | None = None,
    ring_size: int | None = None,
) -> Target:
    """Start a program, stopped before its first instruction; `resume()`, `events()` or `wait()` lets it go.

    At the first probe its loader is run until the libraries are there, so that they can be probed, too.
    """
    from sidestep.target.process.launch import launch as launch_process  # 10 ms that attach() does not need

    environment = None if env is None else dict(env)
    process = launch_process(arguments, env=environment, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr)
    try:
        return Target(process, ring_size=ring_size)
    except BaseException:
        process.close()
        raise
