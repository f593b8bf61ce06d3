"""One controller for each process: who else probes it, and what is said then."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sidestep import errors
from sidestep.errors import TargetError
from sidestep.target.process import procfs
from sidestep.target.process.remains import sessions
from sidestep.target.process.turns import in_turn

T = TypeVar("T")


def refuse_company(pid: int) -> None:
    """Raises TargetError OTHER_SESSION if a controller that is alive probes the process."""
    for session in sessions(pid):
        if session.controller_alive:
            subject = f"process {pid} ({procfs.read_status(pid).name})"
            raise TargetError(subject, errors.OTHER_SESSION, f"pid {session.header.controller_pid}")


def alone(pid: int, work: Callable[[], T]) -> T:
    """What `work` gives, which stops the process: asked for only while nobody else probes it.

    Raises TargetError OTHER_SESSION, or ALREADY_TRACED if somebody else goes on tracing it.
    """

    def check_and_work() -> T:
        refuse_company(pid)
        return work()

    return in_turn(check_and_work)
