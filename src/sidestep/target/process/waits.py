"""System calls that wait, and that the kernel resumes by restart_syscall(2) after a stop."""

from __future__ import annotations

from collections.abc import Collection

from sidestep.target.process.ptrace import Registers
from sidestep.target.process.syscalls import ERESTART_RESTARTBLOCK, Syscall

FUTEX_COMMAND, FUTEX_WAIT_BITSET = 0x7F, 9  # <linux/futex.h>
WHERE_AND_WHAT = ("rip", "rsp", "rdi", "rsi", "rdx", "r10", "r8", "r9")


class Waits:
    """Which calls threads wait in. Their registers tell it the first time that they are stopped; after that
    they show only restart_syscall(2), and only who has seen it knows."""

    def __init__(self) -> None:
        self._seen: dict[int, Registers] = {}

    def note(self, tid: int, registers: Registers) -> None:
        """A thread has stopped."""
        if registers.rax != ERESTART_RESTARTBLOCK:
            self._seen.pop(tid, None)
        elif registers.orig_rax != Syscall.RESTART_SYSCALL:
            self._seen[tid] = registers.copy()

    def keep(self, tids: Collection[int]) -> None:
        """Forget all other threads."""
        self._seen = {tid: seen for tid, seen in self._seen.items() if tid in tids}

    def call(self, tid: int, registers: Registers) -> int:
        """The number of the call that a thread is in; RESTART_SYSCALL if that was resumed and never seen."""
        seen = self._seen.get(tid)
        if registers.orig_rax != Syscall.RESTART_SYSCALL or seen is None:
            return registers.orig_rax
        if any(getattr(seen, name) != getattr(registers, name) for name in WHERE_AND_WHAT):
            return Syscall.RESTART_SYSCALL
        return seen.orig_rax


def may_begin_anew(registers: Registers) -> bool:
    """Whether a wait that would be resumed may as well begin anew, since it has no limit, or one that is a
    point of time: poll(-1), FUTEX_WAIT_BITSET."""
    if registers.rax != ERESTART_RESTARTBLOCK:
        return False
    if registers.orig_rax == Syscall.POLL:
        return registers.rdx >> 31 & 1 == 1
    return registers.orig_rax == Syscall.FUTEX and registers.rsi & FUTEX_COMMAND == FUTEX_WAIT_BITSET
