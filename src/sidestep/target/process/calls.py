"""The system calls that are made in a target: their constants, and what a filter sees of them.

From <linux/mman.h> and <linux/memfd.h>.
"""

from __future__ import annotations

from typing import NamedTuple

from sidestep.arch.x86_64 import reading, recording
from sidestep.target.process.syscalls import Syscall

PROT_NONE, _READ, _WRITE, _EXECUTE = 0, 1, 2, 4
READ_WRITE, READ_EXECUTE = _READ | _WRITE, _READ | _EXECUTE
_MAP_SHARED, _MAP_PRIVATE, _MAP_ANONYMOUS, _MAP_NORESERVE, _MAP_FIXED_NOREPLACE = 1, 2, 0x20, 0x4000, 0x100000
SHARED_FLAGS = _MAP_SHARED | _MAP_NORESERVE | _MAP_FIXED_NOREPLACE
ARENA_FLAGS = _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE | _MAP_FIXED_NOREPLACE
MADV_DONTDUMP, MADV_WIPEONFORK = 16, 18
MFD_CLOEXEC, MFD_ALLOW_SEALING, MFD_NOEXEC_SEAL = 1, 2, 8


class Call(NamedTuple):
    """A system call as a filter sees it. None: an argument that is not known before, as those not given."""

    name: str
    number: int
    arguments: tuple[int | None, ...] = ()


LEAVING = (
    Call("getpid", Syscall.GETPID),
    Call("rt_sigreturn", Syscall.RT_SIGRETURN),
    Call("munmap", Syscall.MUNMAP),
    Call("close", Syscall.CLOSE),
)
INJECTED = (
    *LEAVING,
    Call("memfd_create", Syscall.MEMFD_CREATE, (None, MFD_CLOEXEC | MFD_NOEXEC_SEAL)),
    Call("memfd_create", Syscall.MEMFD_CREATE, (None, MFD_CLOEXEC | MFD_ALLOW_SEALING)),
    Call("mmap", Syscall.MMAP, (None, None, PROT_NONE, SHARED_FLAGS)),
    Call("mmap", Syscall.MMAP, (None, None, READ_EXECUTE, ARENA_FLAGS, 2**64 - 1, 0)),
    Call("munlock", Syscall.MUNLOCK),
    Call("mprotect", Syscall.MPROTECT, (None, None, READ_WRITE)),
    Call("madvise", Syscall.MADVISE, (None, None, MADV_DONTDUMP)),
    Call("madvise", Syscall.MADVISE, (None, None, MADV_WIPEONFORK)),
)
"""What a borrowed thread is made to call (see remote.py), with the arguments that are always the same.
LEAVING: what takes out what is there."""

SETTING_HANDLERS = (Call("rt_sigaction", Syscall.RT_SIGACTION, (None, None, None, 8)),)
"""The same, where the program handles faults itself and instructions that may fault are moved."""

COUNTING = (Call("getpid", reading.SYS_GETPID),)
RECORDING = (
    Call("gettid", recording.SYS_GETTID),
    Call("process_vm_readv", reading.SYS_PROCESS_VM_READV, (None, None, 1, None, None, 0)),
    Call("prctl", reading.SYS_PRCTL, (reading.PR_GET_NAME,)),
)
WRITING = (Call("process_vm_writev", reading.SYS_PROCESS_VM_WRITEV, (None, None, 1, None, 1, 0)),)
"""What code of ours in the target calls at a hit that is counted, that is recorded or has a native handler,
and where a native handler writes to memory."""
