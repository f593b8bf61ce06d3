"""Processes that run in the memory of another without being its threads: children of clone(CLONE_VM), vfork.

No file of /proc names them; kcmp(2) compares the memory of two that are given. Compared are all processes at
the first look, and later those whose pid was given out since: who has memory of its own never comes to share
another's. Where kcmp is not allowed (seccomp profiles of containers) none are found.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable

from sidestep.errors import TargetError
from sidestep.target.process import procfs

MOST_COMPARED = 1000  # pids one by one; where more were given out all processes are looked at


class Sharers:
    """Those that share the memory of one process, as far as they are `known`."""

    def __init__(self) -> None:
        self.known: set[int] = set()
        self._looked_until: int | None = None

    def look(self, stopped: Collection[int]) -> bool:
        """Whether some came to be known now. All that were known are `stopped`, with all their threads: so
        whomever they made is there to be seen, and has a pid that was given out."""
        newest = int(procfs.last_pid())
        found = sharing(next(iter(stopped)), (pid for pid in self._since(newest) if pid not in stopped))
        found -= self.known
        self.known |= found
        if not found:
            self._looked_until = newest
        return bool(found)

    def _since(self, newest: int) -> Iterable[int]:
        """The pids that were given out since the last look. They rise, and start again below."""
        last = self._looked_until
        if last is not None and 0 <= newest - last <= MOST_COMPARED:
            return range(last + 1, newest + 1)
        return all_processes()


def all_processes() -> Iterable[int]:
    return (int(entry) for entry in os.listdir("/proc") if entry.isdigit())


def sharing(tid: int, candidates: Iterable[int]) -> set[int]:
    """The processes of those candidates (of which some may be threads) that run in the memory of a thread.

    One that is ending has no memory, and neither have kernel threads: the kernel calls that the same.
    """
    found: set[int] = set()
    for candidate in candidates:
        if procfs.share_memory(tid, candidate):
            try:
                status = procfs.read_status(candidate)
            except TargetError:
                continue  # it has ended
            if not status.flags & procfs.WITHOUT_MEMORY:
                found.add(status.thread_group)
    return found
