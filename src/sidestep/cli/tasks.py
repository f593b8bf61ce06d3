"""What threads are called, for events that are shown some time after they happened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidestep.errors import TargetError
from sidestep.target.process import procfs

if TYPE_CHECKING:
    from sidestep.session import Target


class TaskNames:
    """The names of the target's threads, and of its children: as they were when each was first seen.

    A name is believed only if it is of the program that is probed: what a thread is called after an exec says
    nothing about the one that hit the probe. Nobody knows the names of threads that have ended before. What
    is given is not fit to be printed: it is the target's.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._own_pid = procfs.own_pid(target.pid)
        self._same_namespace = self._own_pid == target.pid
        self._names: dict[int, str] = {}
        self._final = False
        self._look()

    def settle(self) -> None:
        """The last look at the target: who is not known then stays unknown."""
        self._look()
        self._final = True

    def __call__(self, pid: int, tid: int) -> str:
        """The name of a thread by its ids in the target's pid namespace; "" where none can be trusted."""
        if pid != self._own_pid:
            return self._of_child(pid, tid)
        if tid not in self._names and not self._final:
            self._look_at(tid)
        return self._names.get(tid, "")

    def _look(self) -> None:
        try:
            found = procfs.thread_names(self._target.pid)
        except TargetError:
            return
        if self._target.alive:
            self._names = found | self._names

    def _look_at(self, tid: int) -> None:
        if not self._same_namespace:
            self._look()
            return
        name = procfs.thread_name(self._target.pid, tid)
        if name and self._target.alive:
            self._names[tid] = name

    def _of_child(self, pid: int, tid: int) -> str:
        if not self._same_namespace:
            return ""
        name = procfs.thread_name(pid, tid)
        return name if procfs.runs_its_parents_program(pid) else ""
