"""Text pokes: jumps written into the text of a stopped process, and threads moved out of their way.

Why the order is safe when the controller dies in the middle: the record in the shared table is written before
the text; jumps are taken out before threads leave their buffers; threads enter buffers before jumps are put
in. At every point each thread stands either in code that is as it was, or in a buffer that ends there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sidestep import errors
from sidestep.address import Range
from sidestep.errors import Refusal
from sidestep.target.base import JUMP_SIZE, Change, Detour
from sidestep.target.process.process import Window
from sidestep.target.process.ptrace import Registers
from sidestep.target.process.stacks import saved_ips
from sidestep.target.process.stop import StoppedThread


def effective_ip(registers: Registers) -> int:
    """The instruction that the thread will execute next: that of the system call which the kernel will
    restart."""
    return registers.rip - 2 if registers.will_restart else registers.rip


def move(thread: StoppedThread, address: int, original: int) -> None:
    """Make `address` the thread's effective ip; the program's own address for it is `original`.

    (A `syscall` is two bytes wherever it is.) Behind a system call rcx holds the address of the next
    instruction, since `syscall` puts it there: the program shall see its own.
    """
    registers = thread.registers
    restarts = 2 if registers.will_restart else 0
    if registers.in_system_call and registers.rcx == registers.rip:
        registers.rcx = original + restarts
    thread.move(address + restarts)
    thread.write_back()


def change_text(
    window: Window, changes: Sequence[Change], note: Callable[[Detour], None]
) -> dict[int, Refusal]:
    """Make the changes that can be made; `note` is called before a jump is written. Refusals by index."""
    refused = _check(window, changes)
    going = [change for index, change in enumerate(changes) if index not in refused]
    old = [detour for change in going for detour in change.old]
    new = [change.new for change in going if change.new is not None]
    for detour in old:
        window.memory.write(detour.site, detour.original)
    _move_threads(window, old, new)
    for detour in new:
        note(detour)
        window.memory.write(detour.site, detour.jump)
    return refused


def take_out(window: Window, detours: Sequence[Detour]) -> None:
    """In a process that inherited them: put the original bytes back wherever the jump is there."""
    moves: dict[int, int] = {}
    for detour in detours:
        if window.memory.read_available(detour.site, JUMP_SIZE) == detour.jump:
            window.memory.write(detour.site, detour.original)
        if window.memory.read_available(detour.buffer.address, len(detour.buffer.code)) == detour.buffer.code:
            moves.update((copy, original) for original, copy in detour.buffer.boundaries)
    evacuate(window, moves)


def evacuate(window: Window, moves: Mapping[int, int]) -> None:
    """Take threads that stand at a copy (a key) back to the original instruction (its value)."""
    for thread in window:
        original = moves.get(effective_ip(thread.registers))
        if original is not None:
            move(thread, original, original)


def in_flight(window: Window, spans: Sequence[Range]) -> set[Range]:
    """Which of our code spans some thread is in, or will return into."""
    ips = {thread.registers.rip for thread in window}
    ips |= saved_ips(window, spans)
    return {span for span in spans if any(ip in span for ip in ips)}


def _check(window: Window, changes: Sequence[Change]) -> dict[int, Refusal]:
    """In the stop: the text is what was planned for, and nobody will return into bytes that are
    overwritten."""
    refused: dict[int, Refusal] = {}
    arriving = [change.new.dcr for change in changes if change.new is not None and change.new.interior]
    saved = saved_ips(window, arriving)
    for index, change in enumerate(changes):
        expected = {detour.written: detour.jump for detour in change.old}
        new = change.new
        if new is not None and not any(new.written.overlaps(written) for written in expected):
            expected[new.written] = new.original
        for written, wanted in expected.items():
            found = window.memory.read_available(written.start, JUMP_SIZE)
            if found != wanted:
                reason = errors.FOREIGN_BREAKPOINT if b"\xcc" in found else errors.FOREIGN_BYTES
                detail = f"at {written.start:#x}: {found.hex(' ')} instead of {wanted.hex(' ')}"
                refused[index] = Refusal(reason, detail)
        if new is not None and index not in refused and saved:
            inside = next((ip for ip in new.interior if ip in saved), None)
            if inside is not None:
                refused[index] = Refusal(errors.SAVED_IP, f"{inside:#x}")
    return refused


def _move_threads(window: Window, old: Sequence[Detour], new: Sequence[Detour]) -> None:
    """Threads inside a region go on in its buffer; threads at a copy in an old buffer go where it now is."""
    # Of two places for one address (behind a system call, and the copy of what follows) the copy comes last.
    entering = {original: copy for detour in new for original, copy in detour.buffer.boundaries}
    interior = {address for detour in new for address in detour.interior}
    leaving = {copy: original for detour in old for original, copy in detour.buffer.boundaries}
    ends = {detour.dcr.end for detour in new}
    for thread in window:
        here = effective_ip(thread.registers)
        there = original = leaving.get(here, here)
        # At the site itself a thread takes the jump, unless it was counted there already: it comes from a
        # buffer, # or waits in a system call. Behind the region it has nothing to do with it.
        counted = here in leaving or thread.registers.will_restart
        if there in entering and there not in ends and (there in interior or counted):
            there = entering[there]
        if there != here:
            move(thread, there, original)
