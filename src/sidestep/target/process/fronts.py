"""Handlers for faults and the fronts that the kernel has instead of them (arch.x86_64.signal_code)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from sidestep import errors
from sidestep.address import PAGE, Range
from sidestep.arch.x86_64 import signal_code
from sidestep.arch.x86_64.signal_code import (
    ACT_SIZE,
    FRONT_SIZE,
    FRONTS,
    FRONTS_SIZE,
    SA_SIGINFO,
    SIGNALS,
    SLOT_SIZE,
    TABLE_SIZE,
    UC_RIP,
    Layout,
)
from sidestep.errors import TargetError
from sidestep.target.base import Memory
from sidestep.target.process import procfs
from sidestep.target.process.calls import INJECTED, LEAVING, SETTING_HANDLERS
from sidestep.target.process.process import Window
from sidestep.target.process.remote import RemoteCalls
from sidestep.target.process.syscalls import Syscall

CODE_SIZE = 2 * PAGE  # of the fronts and what they lead to
_SIG_IGN = 1
_SET_SIZE = 8  # bytes of a set of signals
_ACTION = struct.Struct("<QQQQ")  # struct sigaction of the kernel: handler, flags, restorer, mask
assert _ACTION.size == ACT_SIZE


class Action(NamedTuple):
    """What the kernel does with a signal."""

    handler: int
    flags: int
    restorer: int
    mask: int

    @property
    def has_handler(self) -> bool:
        """Neither SIG_DFL nor SIG_IGN."""
        return self.handler > _SIG_IGN


def layout_at(address: int) -> Layout:
    """Where the parts of a signal layer are whose memory begins at `address`."""
    return Layout(address, address + CODE_SIZE + TABLE_SIZE, address + CODE_SIZE)


def put_in(window: Window, layout: Layout, restorer: int) -> None:
    """Put fronts before the handlers that are installed.

    Raises TargetError, with nothing changed: filters of system calls forbid it, another process runs in this
    memory with handlers of its own, or a handler does not return by way of `restorer`.
    """
    subject = f"process {window.process.pid}"
    for process in {thread.process for thread in window} - {window.process.pid}:
        if _handles_faults(process):
            detail = f"process {process} runs in its memory and handles faults, too"
            raise TargetError(subject, errors.NOT_SUPPORTED, detail)
    with window.calls((*INJECTED, *SETTING_HANDLERS)) as calls:
        fronted: dict[int, Action] = {}
        for number in SIGNALS:
            action = _installed(calls, window.memory, number)
            if not action.has_handler or _is_front(action, layout):
                continue
            if action.restorer != restorer:
                detail = f"its handler for signal {number} does not return through the C library"
                raise TargetError(subject, errors.NOT_SUPPORTED, detail)
            fronted[number] = _fronted(window.memory, layout, action)
        for number, action in fronted.items():
            _install(calls, window.memory, number, action)


def take_out(window: Window, layout: Layout) -> None:
    """Put the handlers themselves back. Raises TargetError MEMORY_STAYS where filters of system calls forbid
    that."""
    inherited = any(mapping.start <= layout.code < mapping.end for mapping in window.maps)
    if not inherited or not _handles_faults(window.process.pid):
        return
    try:
        with window.calls((*LEAVING, *SETTING_HANDLERS)) as calls:
            for number in SIGNALS:
                action = _installed(calls, window.memory, number)
                if _is_front(action, layout):
                    _install(calls, window.memory, number, _original(window.memory, layout, action))
    except TargetError as error:
        if error.reason is not errors.SECCOMP:
            raise
        raise TargetError(error.subject, errors.MEMORY_STAYS, error.detail) from error


def evacuate(window: Window, layout: Layout, code: Sequence[Range]) -> None:
    """Threads that are about to enter a front enter the handler, unless they were interrupted in `code` of
    ours."""
    for thread in window:
        start = thread.registers.rip - layout.code
        if 0 <= start < FRONTS_SIZE and start % FRONT_SIZE == 0:
            place = thread.registers.rdx + UC_RIP
            interrupted = int.from_bytes(window.memory.read_available(place, 8), "little")
            if not any(interrupted in span for span in code):
                thread.move(_handler(window.memory, layout, start // FRONT_SIZE // 2))
                thread.write_back()


def _handles_faults(pid: int) -> bool:
    """Whether a process has handlers for faults; False when it is gone."""
    try:
        return procfs.read_status(pid).catches(*SIGNALS)
    except TargetError:
        return False


def _installed(calls: RemoteCalls, memory: Memory, number: int) -> Action:
    calls.call(Syscall.RT_SIGACTION, number, 0, calls.scratch, _SET_SIZE)
    return Action(*_ACTION.unpack(memory.read(calls.scratch, ACT_SIZE)))


def _install(calls: RemoteCalls, memory: Memory, number: int, action: Action) -> None:
    memory.write(calls.scratch, _ACTION.pack(*action))
    calls.call(Syscall.RT_SIGACTION, number, calls.scratch, 0, _SET_SIZE)


def _is_front(action: Action, layout: Layout) -> bool:
    return 0 <= action.handler - layout.code < FRONTS_SIZE


def _fronted(memory: Memory, layout: Layout, action: Action) -> Action:
    """The action with a front, whose slot is written."""
    slots = struct.unpack(f"<{FRONTS}Q", memory.read(layout.slots, FRONTS * SLOT_SIZE))
    slot = next((slot for slot, handler in enumerate(slots) if handler in (0, action.handler)), None)
    if slot is None:
        raise TargetError("the target", errors.NOT_SUPPORTED, f"more than {FRONTS} handlers for faults")
    memory.write(layout.slots + slot * SLOT_SIZE, struct.pack("<Q", action.handler))
    handler = layout.code + signal_code.front(slot, with_siginfo=bool(action.flags & SA_SIGINFO))
    return action._replace(handler=handler, flags=action.flags | SA_SIGINFO)


def _original(memory: Memory, layout: Layout, action: Action) -> Action:
    slot, without_siginfo = divmod((action.handler - layout.code) // FRONT_SIZE, 2)
    flags = action.flags & ~SA_SIGINFO if without_siginfo else action.flags
    return action._replace(handler=_handler(memory, layout, slot), flags=flags)


def _handler(memory: Memory, layout: Layout, slot: int) -> int:
    return int.from_bytes(memory.read(layout.slots + slot * SLOT_SIZE, SLOT_SIZE), "little")
