"""The processes that have the memory of a session: the target, and those that inherited it by fork."""

from __future__ import annotations

import time
from collections.abc import Callable

from sidestep import errors
from sidestep.errors import TargetError
from sidestep.target.process import procfs
from sidestep.target.process.areas import processes_that_map, unreadable_children
from sidestep.target.process.process import Process, Window, attach_child
from sidestep.target.process.turns import in_turn


class Family:
    """Who they are, and something done in each of them. `inode` is that of the session's shared memory."""

    def __init__(self, process: Process, inode: int) -> None:
        self._process, self._inode = process, inode
        self._began = procfs.now_as_start_time()
        self._childless_at = b""

    def children(self, newest: bytes = b"") -> list[int]:
        """The other processes that have our memory, each in an address space of its own.

        Looked for only if a process was made since there was none. `newest` is the last pid at a moment when
        the target was stopped: at others a fork may have taken its pid and not be seen yet.
        """
        if procfs.last_pid() == self._childless_at:
            return []
        main = self._process.pid
        children = [pid for pid in processes_that_map(self._inode) if pid != main]
        if newest:
            self._childless_at = b"" if children else newest
        return [pid for pid in children if not procfs.share_memory(main, pid)]

    def is_called(self, own_pid: int) -> bool:
        """Whether a child has that pid in its own pid namespace."""
        return any(_own_pid(pid) == own_pid for pid in self.children())

    def in_child(self, pid: int, function: Callable[[Window], bool | None]) -> bool:
        """Run in a window of one; True when it is done, or the process is gone."""
        try:
            child = attach_child(pid)
        except TargetError as error:
            if error.is_gone:
                return True
            raise
        child.hides_contexts = self._process.hides_contexts
        try:
            return child.in_window(lambda window: not self._is_in(window) or function(window) is not False)
        except TargetError as error:
            if error.reason is errors.PROCESS_GONE:
                return True
            raise
        finally:
            child.close()

    def _is_in(self, window: Window) -> bool:
        """False for a process that has executed another program since it was found."""
        return any(mapping.inode == self._inode for mapping in window.maps)

    def leave(self, function: Callable[[Window], bool], patience: float) -> list[str]:
        """Run in a window of each until none has our memory. `function` is False where a thread is still in
        code of ours: it is tried again, for so many seconds. What could not be done, in sentences."""
        deadline = time.monotonic() + patience
        problems: dict[int, str] = {}
        final: set[int] = set()  # nothing changes there
        while members := self._members() - final:
            for pid in members:
                try:
                    if self._leave_one(pid, function):
                        problems.pop(pid, None)
                    else:
                        problems[pid] = f"process {pid}: a thread is still in code of ours" + _try_clean(pid)
                except TargetError as error:
                    problems[pid] = str(error)
                    if error.reason is errors.MEMORY_STAYS:
                        final.add(pid)
                except OSError as error:
                    problems[pid] = f"process {pid}: {error}" + _try_clean(pid)
            if time.monotonic() > deadline:
                break
            if problems.keys() - final:
                time.sleep(0.002)
        else:
            problems = {pid: text for pid, text in problems.items() if pid in final}
        for pid in unreadable_children(self._process.pid, self._began):
            problems[pid] = (
                f"process {pid}: a child whose memory we may not see keeps what it inherited"
                + _try_clean(pid)
                + " as its user or as root"
            )
        return list(problems.values())

    def all_done(self, function: Callable[[Window], bool], tries: int) -> bool:
        """Whether `function` was true in a window of each, within some tries, or it is gone."""
        left = {self._process.pid, *self.children()}
        for _ in range(tries):
            left = {pid for pid in left if not self._leave_one(pid, function)}
            if not left:
                return True
            time.sleep(0.001)
        return False

    def _members(self) -> set[int]:
        """Without those that share the memory of the target: they are rid of everything together with it."""
        main = self._process.pid
        return {
            pid
            for pid in processes_that_map(self._inode)
            if pid == main or not procfs.share_memory(main, pid)
        }

    def _leave_one(self, pid: int, function: Callable[[Window], bool]) -> bool:
        if pid != self._process.pid:
            return self.in_child(pid, function)
        try:
            return in_turn(lambda: self._process.in_window(function))
        except TargetError as error:
            if error.reason is errors.PROCESS_GONE:
                return True
            raise


def _own_pid(pid: int) -> int:
    """A process's pid in its own pid namespace; 0 when it is gone."""
    try:
        return procfs.read_status(pid).own_pid
    except TargetError:
        return 0


def _try_clean(pid: int) -> str:
    return f"; try `sidestep clean -p {pid}`"
