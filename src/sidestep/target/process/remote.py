"""System calls inside the target, run by one of its stopped threads.

The order of every step is such that the thread goes on correctly if the controller dies after it: the
signal frame is complete before the registers change, and from then on the thread, let run, makes the
call, returns into the restorer and is what it was (see frame.py).
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sidestep import errors
from sidestep.arch.x86_64.frame import RED_ZONE
from sidestep.errors import TargetError
from sidestep.target.process import frame, ptrace
from sidestep.target.process.memory import ProcessMemory
from sidestep.target.process.ptrace import Event, Registers, Request
from sidestep.target.process.stop import Stop, StoppedThread
from sidestep.target.process.syscalls import ERESTART_RESTARTBLOCK, Syscall

ALL_SIGNALS = 2**64 - 1
SCRATCH = 512  # bytes for strings and structures that a call is given
SYSCALL_RET = b"\x0f\x05\xc3"
RESTORERS = (
    b"\x48\xc7\xc0\x0f\x00\x00\x00\x0f\x05",
    b"\xb8\x0f\x00\x00\x00\x0f\x05",
)  # mov $15, %rax; syscall
POP_RAX_RET = b"\x58\xc3"


@dataclass(frozen=True, slots=True)
class Gadgets:
    """Code of the target's own files that a borrowed thread runs: `syscall; ret`, and a way into
    rt_sigreturn.

    Where no restorer is mapped (at the first instruction of a new process) or a hook is in it,
    `pop %rax; ret` with 15 behind it and `syscall` do the same.
    """

    syscall_ret: int
    restorer: int
    pop_rax: int


def find_gadgets(memory: ProcessMemory, ranges: list[tuple[int, int]]) -> Gadgets:
    """Search executable, file-backed `ranges`; raises TargetError NO_GADGET."""
    syscall_ret = restorer = pop_rax = 0
    for start, end in ranges:
        code = memory.read_available(start, end - start)
        if not syscall_ret and (at := code.find(SYSCALL_RET)) >= 0:
            syscall_ret = start + at
        if not pop_rax and (at := code.find(POP_RAX_RET)) >= 0:
            pop_rax = start + at
        for pattern in RESTORERS:
            if not restorer and (at := code.find(pattern)) >= 0:
                restorer = start + at
        if syscall_ret and (restorer or pop_rax):
            return Gadgets(syscall_ret, restorer, pop_rax)
    raise TargetError(f"process {memory.pid}", errors.NO_GADGET)


class RemoteCalls:
    """A borrowed thread. Use `borrowed()`; `call()` runs one system call in it."""

    def __init__(
        self, stop: Stop, thread: StoppedThread, memory: ProcessMemory, gadgets: Gadgets, base: int
    ) -> None:
        self._stop, self._thread, self._memory, self._gadgets = stop, thread, memory, gadgets
        self._base = base  # lowest address of what is written below the stack
        self._original = thread.registers.copy()
        self._mask = ptrace.get_signal_mask(thread.tid)
        self.scratch = base
        self._signal = 0  # what the thread is given when it goes on

    @staticmethod
    def size(state: bytes) -> int:
        return SCRATCH + 64 + len(state) + 64 + frame.FRAME_SIZE + 64

    def enter(self, state: bytes) -> None:
        tid = self._thread.tid
        state_address = (self._base + SCRATCH + 63) & ~63
        # The user context must lie 8 below a multiple of 16, as the kernel lays it.
        frame_address = (state_address + len(state) + 15 & ~15) + 24
        resumed = frame.resumption(self._original, self._stop.waits.call(tid, self._original))
        image = frame.build(frame_address, state_address, self._gadgets.restorer, resumed, self._mask)
        self._memory.write(state_address, state)
        if self._gadgets.restorer:
            self._memory.write(frame_address, image)
            self._stack = frame_address
        else:  # ret -> pop %rax; ret -> 15 -> syscall, with the context right behind
            chain = struct.pack(
                "<QQQ", self._gadgets.pop_rax, Syscall.RT_SIGRETURN, self._gadgets.syscall_ret
            )
            self._memory.write(frame_address - 16, chain + image[8:])
            self._stack = frame_address - 16
        self._prepare(Syscall.GETPID)  # harmless, should the controller die right here
        ptrace.set_signal_mask(tid, ALL_SIGNALS)

    def _prepare(self, number: int, arguments: tuple[int, ...] = ()) -> None:
        registers = self._original.copy()
        registers.rsp, registers.rip = self._stack, self._gadgets.syscall_ret
        registers.rax, registers.orig_rax = number, 2**64 - 1
        registers.eflags = self._original.eflags & ~0x400  # DF clear, as the ABI wants it
        names = ("rdi", "rsi", "rdx", "r10", "r8", "r9")
        for name, value in zip(names, arguments, strict=False):
            setattr(registers, name, value & 2**64 - 1)
        ptrace.set_registers(self._thread.tid, registers)

    def call(self, number: int, *arguments: int) -> int:
        """The call's result; raises OSError with its errno."""
        self._prepare(number, arguments)
        self._run_to_system_call_stop()  # entry
        self._run_to_system_call_stop()  # exit
        result = ctypes.c_int64(ptrace.get_registers(self._thread.tid).rax).value
        if -4096 < result < 0:
            raise OSError(
                -result, f"{os.strerror(-result)} (system call {number} in process {self._stop.pid})"
            )
        return result

    def _run_to_system_call_stop(self) -> None:
        while os.WSTOPSIG(self._resume(Request.SYSCALL) & 0xFFFF) != signal.SIGTRAP | 0x80:
            pass

    def _resume(self, request: Request) -> int:
        """Run the thread to its next stop. A signal that stopped it is given back to it at the next turn.

        Only SIGSTOP can be one: nothing else is unblocked. A thread that it stops goes on with our call; the
        process stops when it is let go, as the kernel keeps that in mind.
        """
        tid = self._thread.tid
        ptrace.call(request, tid, 0, self._signal)
        status = ptrace.wait_long(tid)
        self._signal = 0
        if not os.WIFSTOPPED(status & 0xFFFF):
            self._stop.threads.pop(tid, None)
            if tid == self._stop.pid:
                self._stop.exit_status = status
            raise TargetError(f"process {self._stop.pid}", errors.PROCESS_GONE)
        if not ptrace.event_of(status) and os.WSTOPSIG(status & 0xFFFF) == signal.SIGSTOP:
            self._signal = signal.SIGSTOP
        return status

    def leave(self) -> None:
        """Back to the stop that the thread was borrowed from; only there does the kernel restart its system
        call."""
        tid = self._thread.tid
        ptrace.call(Request.INTERRUPT, tid)
        while ptrace.event_of(self._resume(Request.CONT)) != Event.STOP:
            pass
        ptrace.set_signal_mask(tid, self._mask)
        ptrace.set_registers(tid, self._original)
        self._thread.forget()


@contextmanager
def borrowed(
    stop: Stop,
    memory: ProcessMemory,
    gadgets: Gadgets,
    stacks: dict[int, int],
    permit: Callable[[StoppedThread], object],
) -> Iterator[RemoteCalls]:
    """Borrow a thread for system calls.

    `stacks` has, for each thread with a stack that can be used, the lowest mapped address of that stack.
    `permit` raises TargetError if a thread must not make them.
    What is overwritten below the red zone is put back.
    """
    stop.check_alive()
    stop.write_back()
    refused: TargetError | None = None
    for thread in _candidates(stop, stacks):
        state = frame.extended_state_for_frame(ptrace.get_extended_state(thread.tid))
        size = RemoteCalls.size(state)
        top = thread.registers.rsp - RED_ZONE
        base = (top - size) & ~63
        if base < stacks[thread.tid]:
            continue
        try:
            permit(thread)
        except TargetError as error:
            refused = refused or error
            continue
        saved = memory.read(base, top - base)
        calls = RemoteCalls(stop, thread, memory, gadgets, base)
        try:
            try:
                calls.enter(state)
                yield calls
            finally:
                if thread.tid in stop.threads:
                    calls.leave()
                    memory.write(base, saved)
        except ProcessLookupError as error:
            stop.thread_exited(thread.tid)
            raise TargetError(f"process {stop.pid}", errors.PROCESS_GONE) from error
        return
    raise refused or TargetError(f"process {stop.pid}", errors.NO_STACK)


def _candidates(stop: Stop, stacks: dict[int, int]) -> list[StoppedThread]:
    """Threads in the order in which they are asked.

    Last those that may wait with a time limit: if the controller dies while one is borrowed, its wait begins
    again (see frame.resumption). The main thread before others.
    """
    threads = [thread for thread in stop.own if thread.tid in stacks]
    return sorted(threads, key=lambda t: (t.registers.rax == ERESTART_RESTARTBLOCK, t.tid != stop.pid, t.tid))


def explain(error: OSError) -> str:
    """What the errno of a remote call means for the user."""
    if error.errno in (errno.ENOMEM, errno.EAGAIN):
        return f"{error.strerror}: the process is at a limit of its memory or of vm.max_map_count"
    if error.errno == errno.EMFILE:
        return f"{error.strerror}: the process has no free file descriptor"
    return error.strerror or str(error)


__all__ = ["Gadgets", "Registers", "RemoteCalls", "borrowed", "explain", "find_gadgets"]
