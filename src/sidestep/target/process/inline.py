"""The inline engine: writes jumps into the text of a stopped process and moves its threads out of the way.

Why the order is safe when the controller dies in the middle: the record in the shared table is written before
the text; jumps are taken out before threads leave their buffers; threads enter buffers before jumps are put in.
At every point each thread stands either in code that is as it was, or in a buffer that ends there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from sidestep import errors
from sidestep.address import Range
from sidestep.errors import Refusal
from sidestep.events import layout
from sidestep.target.base import JUMP_SIZE, Buffer, Change, Detour
from sidestep.target.process.areas import SharedArea
from sidestep.target.process.process import Process, Window
from sidestep.target.process.ptrace import Registers
from sidestep.target.process.stacks import saved_ips
from sidestep.target.process.stop import StoppedThread


def effective_ip(registers: Registers) -> int:
    """The instruction that the thread will execute next: that of the system call which the kernel will restart."""
    return registers.rip - 2 if registers.will_restart else registers.rip


def move(thread: StoppedThread, address: int) -> None:
    """Make `address` the thread's effective ip. (A restarted `syscall` is two bytes wherever it is.)"""
    thread.move(address + 2 if thread.registers.will_restart else address)
    thread.write_back()


class InlineEngine:
    """Detours of one session in one process, and in the children that inherit them."""

    def __init__(self, process: Process, shared: SharedArea) -> None:
        self.process, self.shared = process, shared
        self.retired: list[Buffer] = []

    def write_buffers(self, buffers: Iterable[Buffer]) -> None:
        """Fill code arenas; nothing leads into these bytes yet."""
        for buffer in buffers:
            self.process.memory.write(buffer.address, buffer.code)

    def apply(self, changes: Sequence[Change]) -> dict[int, Refusal]:
        for change in changes:
            if change.new is not None:
                self._note(change.new, layout.STATE_PREPARED)
        refused = self.process.in_window(lambda window: _apply(window, changes, self._note))
        for index, change in enumerate(changes):
            if index in refused:
                if change.new is not None:
                    self.forget(change.new)
                    self.retired.append(change.new.buffer)
                continue
            for detour in change.old:
                self.retired.append(detour.buffer)
                if change.new is None or detour.table_index != change.new.table_index:
                    self.forget(detour)
        return refused

    def _note(self, detour: Detour, state: int) -> None:
        record = layout.ProbeRecord(
            address=detour.site,
            buffer=detour.buffer.address,
            state=state,
            original=detour.original[:JUMP_SIZE],
            patched=detour.jump,
            flags=0,
            name=detour.name,
        )
        record.write(self.shared.view, detour.table_index)

    def forget(self, detour: Detour) -> None:
        layout.set_probe_state(self.shared.view, detour.table_index, layout.STATE_NONE)


def _apply(
    window: Window, changes: Sequence[Change], note: Callable[[Detour, int], None]
) -> dict[int, Refusal]:
    refused = _check(window, changes)
    going = [change for index, change in enumerate(changes) if index not in refused]
    memory = window.memory
    old = [detour for change in going for detour in change.old]
    new = [change.new for change in going if change.new is not None]
    for detour in old:
        memory.write(detour.site, detour.original[:JUMP_SIZE])
    _move_threads(window, old, new)
    for detour in new:
        note(detour, layout.STATE_ARMED)
        memory.write(detour.site, detour.jump)
    return refused


def _check(window: Window, changes: Sequence[Change]) -> dict[int, Refusal]:
    """In the stop: the text is what was planned for, and nobody will return into bytes that are overwritten."""
    refused: dict[int, Refusal] = {}
    interiors = [change.new.interior for change in changes if change.new is not None]
    saved = sorted(saved_ips(window, interiors))
    for index, change in enumerate(changes):
        expected: dict[int, bytes] = {detour.site: detour.jump for detour in change.old}
        if change.new is not None:
            expected.setdefault(change.new.site, change.new.original[:JUMP_SIZE])
        for site, wanted in expected.items():
            found = window.memory.read_available(site, JUMP_SIZE)
            if found != wanted and not _overlapped(site, change):
                reason = errors.FOREIGN_BREAKPOINT if found[:1] == b"\xcc" else errors.FOREIGN_BYTES
                refused[index] = Refusal(reason, f"at {site:#x}: {found.hex(' ')} instead of {wanted.hex(' ')}")
        if change.new is not None and index not in refused:
            inside = next((ip for ip in saved if ip in change.new.interior), None)
            if inside is not None:
                refused[index] = Refusal(errors.SAVED_IP, f"{inside:#x}")
    return refused


def _overlapped(site: int, change: Change) -> bool:
    """The new site's bytes hold (part of) a jump that this change takes out: that one's bytes are compared."""
    return any(
        detour.site != site and Range(detour.site, detour.site + JUMP_SIZE).overlaps(Range(site, site + JUMP_SIZE))
        for detour in change.old
    )


def _move_threads(window: Window, old: Sequence[Detour], new: Sequence[Detour]) -> None:
    """Threads inside a region go on in its buffer; threads at a copy in an old buffer go back to the original."""
    entering: dict[int, Detour] = {}
    for detour in new:
        for boundary in detour.buffer.boundaries:
            entering[boundary.original] = detour
    leaving = {b.copy: b.original for detour in old for b in detour.buffer.boundaries}
    for thread in window:
        address = effective_ip(thread.registers)
        target = leaving.get(address, address)
        detour_in = entering.get(target)
        # At the site itself a thread just takes the jump, unless it has been counted there already: it came from
        # a buffer, or waits in a system call that was entered before.
        if detour_in is not None and (
            target in detour_in.interior or address in leaving or (target == detour_in.site and thread.registers.will_restart)
        ):
            target = detour_in.buffer.copy_of(target) or target
        if target != address:
            move(thread, target)


def evacuate(window: Window, moves: Mapping[int, int]) -> None:
    """Take threads that stand at a copy (a key) back to the original instruction (its value)."""
    for thread in window:
        original = moves.get(effective_ip(thread.registers))
        if original is not None:
            move(thread, original)


def in_flight(window: Window, spans: Sequence[Range]) -> set[Range]:
    """Which of our code spans some thread is in, or will return into."""
    ips = {thread.registers.rip for thread in window}
    ips |= saved_ips(window, spans)
    return {span for span in spans if any(ip in span for ip in ips)}
