"""ptrace(2), wait4(2) and waitid(2) through ctypes: the only file that calls them for a traced thread.

`PyDLL` keeps the interpreter lock during a call: a call takes 1 to 3 us, while releasing the lock can
cost up to 5 ms when another Python thread is busy. Attachments belong to the calling OS thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import time
from enum import IntEnum, IntFlag

from sidestep.errors import TargetError
from sidestep.target.process import procfs
from sidestep.target.process.syscalls import ERESTART_RESTARTBLOCK, ERESTARTSYS

_libc = ctypes.PyDLL(None, use_errno=True)
_ptrace = _libc.ptrace
_ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
_ptrace.restype = ctypes.c_long
_ptrace_released = ctypes.CDLL(None, use_errno=True).ptrace
_ptrace_released.argtypes, _ptrace_released.restype = _ptrace.argtypes, _ptrace.restype
_wait4 = _libc.wait4
_wait4.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.c_int, ctypes.c_void_p]
_wait4.restype = ctypes.c_int
_waitid = _libc.waitid
_waitid.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
_waitid.restype = ctypes.c_int

WALL = 0x40000000
WNOTHREAD = 0x20000000
NT_X86_XSTATE = 0x202


class Request(IntEnum):
    """Requests of <linux/ptrace.h>."""

    CONT = 7
    GETREGS = 12
    SETREGS = 13
    DETACH = 17
    SYSCALL = 24
    GETSIGINFO = 0x4202
    GETREGSET = 0x4204
    SEIZE = 0x4206
    INTERRUPT = 0x4207
    GETSIGMASK = 0x420A
    SETSIGMASK = 0x420B
    SECCOMP_GET_FILTER = 0x420C


class Option(IntFlag):
    """Options of PTRACE_SEIZE."""

    SYSGOOD = 1
    EXEC = 0x10


class Event(IntEnum):
    """What a stop with a status above 0xffff reports."""

    EXEC = 4
    STOP = 128


_EVENTS = frozenset(Event)


class Registers(ctypes.Structure):
    """struct user_regs_struct of <sys/user.h>, x86-64."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in [
            "r15",
            "r14",
            "r13",
            "r12",
            "rbp",
            "rbx",
            "r11",
            "r10",
            "r9",
            "r8",
            "rax",
            "rcx",
            "rdx",
            "rsi",
            "rdi",
            "orig_rax",
            "rip",
            "cs",
            "eflags",
            "rsp",
            "ss",
            "fs_base",
            "gs_base",
            "ds",
            "es",
            "fs",
            "gs",
        ]
    ]

    r15: int
    r14: int
    r13: int
    r12: int
    rbp: int
    rbx: int
    r11: int
    r10: int
    r9: int
    r8: int
    rax: int
    rcx: int
    rdx: int
    rsi: int
    rdi: int
    orig_rax: int
    rip: int
    cs: int
    eflags: int
    rsp: int
    ss: int
    fs_base: int
    gs_base: int

    def copy(self) -> Registers:
        return Registers.from_buffer_copy(self)

    @property
    def in_system_call(self) -> bool:
        """The thread was stopped on its way out of a system call (asm/ptrace.h: orig_rax >= 0)."""
        return self.orig_rax < 1 << 63

    @property
    def will_restart(self) -> bool:
        """The kernel will step back over the `syscall` instruction and run it again (-ERESTART*)."""
        return self.in_system_call and ERESTART_RESTARTBLOCK <= self.rax <= ERESTARTSYS


class _Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def call(request: Request, tid: int, address: int = 0, data: int = 0) -> int:
    """One ptrace request; raises OSError (ProcessLookupError when the thread is gone or not stopped)."""
    ctypes.set_errno(0)
    result: int = _ptrace(request, tid, address, data)
    if result == -1 and (number := ctypes.get_errno()):
        raise OSError(number, f"ptrace {request.name} {tid}: {os.strerror(number)}")
    return result


def seize(tid: int, options: int) -> None:
    """Attach without a stop. Other Python threads run meanwhile: see rescue.py."""
    ctypes.set_errno(0)
    if _ptrace_released(Request.SEIZE, tid, None, options) == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace SEIZE {tid}: {os.strerror(number)}")


def get_registers(tid: int) -> Registers:
    registers = Registers()
    call(Request.GETREGS, tid, 0, ctypes.addressof(registers))
    return registers


def set_registers(tid: int, registers: Registers) -> None:
    call(Request.SETREGS, tid, 0, ctypes.addressof(registers))


def get_extended_state(tid: int) -> bytes:
    """The XSAVE area in the standard format; bytes 464..471 hold the mask of features the kernel manages."""
    buffer = ctypes.create_string_buffer(1 << 16)
    vector = _Iovec(ctypes.addressof(buffer), len(buffer))
    call(Request.GETREGSET, tid, NT_X86_XSTATE, ctypes.addressof(vector))
    return buffer.raw[: vector.length]


def get_signal_mask(tid: int) -> int:
    mask = ctypes.c_uint64()
    call(Request.GETSIGMASK, tid, 8, ctypes.addressof(mask))
    return mask.value


def set_signal_mask(tid: int, mask: int) -> None:
    value = ctypes.c_uint64(mask)
    call(Request.SETSIGMASK, tid, 8, ctypes.addressof(value))


class _SignalInfo(ctypes.Structure):
    """The part of siginfo_t that all signals have."""

    _fields_ = (
        ("signal", ctypes.c_int),
        ("number", ctypes.c_int),
        ("code", ctypes.c_int),
        ("rest", ctypes.c_char * 116),
    )


class _ChildInfo(ctypes.Structure):
    """The part of siginfo_t that waitid fills."""

    _fields_ = (
        ("signal", ctypes.c_int),
        ("number", ctypes.c_int),
        ("code", ctypes.c_int),
        ("pad", ctypes.c_int),
        ("pid", ctypes.c_int),
        ("user", ctypes.c_uint),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 100),
    )


def wait(tid: int) -> int | None:
    """The next wait status of a traced thread; None when there is none yet (or, OSError, no such child).

    The end of a process that this one has started is only looked at: it is for whoever started it.
    """
    info = _look(os.P_PID, tid)
    if info is None:
        return _stop_told_to_others(tid)
    if info.code in _ENDS and _is_own_child(tid):
        return int(info.status) << 8 if info.code == os.CLD_EXITED else int(info.status)
    return _take(tid)


def wait_long(tid: int) -> int:
    """The same, when there is one: mostly at once.

    Others that the calling OS thread traces may end meanwhile, and are taken: where all are killed, the first
    thread of a process can be waited for only when the others are gone.
    """
    turns = 0
    while (status := wait(tid)) is None:
        turns += 1
        if turns < 100:
            os.sched_yield()
            continue
        info = _look(os.P_ALL, 0, WNOTHREAD)
        if info is not None and info.pid != tid and not _is_own_child(info.pid):
            _take(info.pid)
        time.sleep(50e-6)
    return status


def reap(tid: int) -> None:
    """Take the end of a thread that some OS thread of this process traces, if it has ended. Not for the first
    thread of a process. Unlike `wait` any OS thread may call it."""
    with contextlib.suppress(ChildProcessError):
        info = _look(os.P_PID, tid)
        if info is not None and info.code in _ENDS:
            _take(tid)


_ENDS = (os.CLD_EXITED, os.CLD_KILLED, os.CLD_DUMPED)


def _look(kind: int, tid: int, options: int = 0) -> _ChildInfo | None:
    """What there is to wait for, left there."""
    info = _ChildInfo()
    options |= WALL | os.WEXITED | os.WSTOPPED | os.WNOWAIT | os.WNOHANG
    while _waitid(kind, tid, ctypes.byref(info), options) < 0:
        _raise_unless_interrupted("waitid", tid)
    return info if info.pid else None


def _take(tid: int) -> int | None:
    """The status for which `wait4` is called."""
    status = ctypes.c_int()
    while (result := _wait4(tid, ctypes.byref(status), WALL | os.WNOHANG, None)) < 0:
        _raise_unless_interrupted("wait4", tid)
    return status.value if result == tid else None


def _stop_told_to_others(tid: int) -> int | None:
    """The wait status of a stop that was told to another thread of this process: one that waits for a child
    of its own is told the stops of a traced one as well, whatever it asks for. None while the thread runs."""
    info = _SignalInfo()
    if _ptrace(Request.GETSIGINFO, tid, None, ctypes.addressof(info)) < 0:
        return None
    _take(tid)  # should it have stopped just now, and nobody been told
    is_stop_of_ptrace = info.code == signal.SIGTRAP | 0x80 or info.code >> 8 in _EVENTS
    return int(info.code if is_stop_of_ptrace else info.signal) << 8 | 0x7F


def _raise_unless_interrupted(call: str, tid: int) -> None:
    number = ctypes.get_errno()
    if number != errno.EINTR:
        raise OSError(number, f"{call} {tid}: {os.strerror(number)}")


def _is_own_child(tid: int) -> bool:
    try:
        status = procfs.read_status(tid)
    except TargetError:  # whoever started it was faster
        return False
    return status.thread_group == tid and status.parent == os.getpid()


def event_of(status: int) -> int:
    """The ptrace event of a stop, 0 for an ordinary one."""
    return status >> 16 if os.WIFSTOPPED(status & 0xFFFF) else 0
