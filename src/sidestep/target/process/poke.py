"""Text pokes: jumps written into the text of a stopped process, and threads moved out of their way.

Why the order is safe when the controller dies in the middle: the record in the shared table is written before
the text; jumps are taken out before threads leave their buffers; threads enter buffers before jumps are put
in. At every point each thread stands either in code that is as it was, or in a buffer that ends there.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from sidestep import errors
from sidestep.address import Range
from sidestep.arch.x86_64.runtime import STACK_OF_ROUTINES
from sidestep.errors import Refusal
from sidestep.events.layout import JUMP_SIZE
from sidestep.target.base import JUMP_OPCODE, Change, Detour
from sidestep.target.process.copies import CopyTable, Guard
from sidestep.target.process.process import Window
from sidestep.target.process.ptrace import Registers
from sidestep.target.process.stacks import Context, instruction_pointers, interrupted, lying_in
from sidestep.target.process.stop import StoppedThread
from sidestep.target.process.text import Text


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


class TextChange:
    """Changes of the text, with all that can be prepared before the stop in which they are made."""

    def __init__(
        self, changes: Sequence[Change], retired: Sequence[Detour], table: CopyTable | None = None
    ) -> None:
        """`retired` went before; threads may still be in their buffers. `table`: the one of copies, if there
        is one: it knows new detours before they can be entered, and old ones until nobody is led there."""
        self._changes, self._table = changes, table
        self._old = [detour for change in changes for detour in change.old]
        self._new = [change.new for change in changes if change.new is not None]
        self._written = sorted({detour.written for detour in (*self._old, *self._new)})
        self._interiors = {
            ip: index for index, change in enumerate(changes) if change.new for ip in change.new.interior
        }
        self._moves = _Moves(self._old, self._new)
        self._begun = False
        if table is not None:
            table.enter(self._new)
        self._leading_inside = [
            detour for detour in (*self._old, *retired) if any(ip in self._interiors for ip in detour.exits)
        ]

    def withdraw(self) -> None:
        """Nothing of it was made."""
        if self._table is not None and not self._begun:
            self._table.withdraw(self._new, self._old)

    def make(
        self, window: Window, routines: Sequence[Range], note: Callable[[Detour], None]
    ) -> dict[int, Refusal]:
        """Make the changes that can be made. Refusals by index.

        `routines` are those of ours that buffers call. `note` is called for each new detour that comes
        instead of others, when those are out and before its jump is written.
        """
        text, table = Text(window.memory, self._written), self._table
        refused = self._check(window, text, routines, None if table is None else table.restorer)
        self._begun = True
        old, new, moves = self._old, self._new, self._moves
        if refused:
            going = [change for index, change in enumerate(self._changes) if index not in refused]
            old = [detour for change in going for detour in change.old]
            new = [change.new for change in going if change.new is not None]
            moves = _Moves(old, new)
            if table is not None:
                left = [self._changes[index] for index in refused]
                table.withdraw(
                    [change.new for change in left if change.new is not None],
                    [detour for change in left for detour in change.old],
                )
        if table is not None:
            table.write()
        for detour in old:
            text.put(detour.site, detour.original)
        text.write()
        moves.move_threads(window)
        for index, change in enumerate(self._changes):
            if change.old and change.new is not None and index not in refused:
                note(change.new)
        for detour in new:
            text.put(detour.site, detour.jump)
        text.write()
        if table is not None:
            table.drop_arrivals(old, new)
            table.write()
        return refused

    def _check(
        self, window: Window, text: Text, routines: Sequence[Range], restorer: int | None
    ) -> dict[int, Refusal]:
        """The text is what was planned for, and nobody will return into bytes that are overwritten, or come
        out of an old buffer there."""
        refused: dict[int, Refusal] = {}
        for index, change in enumerate(self._changes):
            new = change.new
            # All old jumps are out before the first new one is written.
            if new is not None and not any(new.written.overlaps(detour.written) for detour in self._old):
                self._compare(text, new.site, new.original, index, refused)
            for detour in change.old:
                self._compare(text, detour.site, detour.jump, index, refused)
        if self._interiors:
            for ip in (*instruction_pointers(window, restorer), *self._coming_out(window, routines)):
                inside = self._interiors.get(ip)
                if inside is not None:
                    refused.setdefault(inside, Refusal(errors.SAVED_IP, f"{ip:#x}"))
        return self._with_dependent(refused) if refused else refused

    def _coming_out(self, window: Window, routines: Sequence[Range]) -> set[int]:
        """Where threads, but for those that are moved, will come out of old buffers."""
        if not self._leading_inside:
            return set()
        in_use = addresses_in_use(window, routines, self._moves.leaving)
        busy = lying_in(in_use, [detour.buffer.span for detour in self._leading_inside])
        return {ip for detour in self._leading_inside if detour.buffer.span in busy for ip in detour.exits}

    def _with_dependent(self, refused: dict[int, Refusal]) -> dict[int, Refusal]:
        """With the changes that can only be made when the old detours of refused ones are out."""
        while True:
            staying = [(detour, refused[index]) for index in refused for detour in self._changes[index].old]
            more = {
                index: refusal
                for index, change in enumerate(self._changes)
                if index not in refused and change.new is not None
                for detour, refusal in staying
                if detour.dcr.overlaps(change.new.dcr)
            }
            if not more:
                return refused
            refused = {**refused, **more}

    @staticmethod
    def _compare(text: Text, site: int, wanted: bytes, index: int, refused: dict[int, Refusal]) -> None:
        found = text.at(site, JUMP_SIZE)
        if found != wanted:
            reason = errors.FOREIGN_BREAKPOINT if b"\xcc" in found else errors.FOREIGN_BYTES
            detail = f"at {site:#x}: {found.hex(' ')} instead of {wanted.hex(' ')}"
            refused[index] = Refusal(reason, detail)


class _Moves:
    """Threads inside a region go on in its buffer; threads at a copy in an old buffer go where it now is."""

    def __init__(self, old: Sequence[Detour], new: Sequence[Detour]) -> None:
        # Of two places for one address (behind a system call, and the copy of what follows) the copy comes
        # last.
        self._entering = {original: copy for detour in new for original, copy in detour.buffer.boundaries}
        self.leaving = {copy: original for detour in old for original, copy in detour.buffer.boundaries}
        self._interior = {address for detour in new for address in detour.interior}
        self._ends = {detour.dcr.end for detour in new}

    def move_threads(self, window: Window) -> None:
        for thread in window:
            here = effective_ip(thread.registers)
            there = original = self.leaving.get(here, here)
            # At the site itself a thread takes the jump, unless it was counted there already: it comes from a
            # buffer, or waits in a system call. Behind the region it has nothing to do with it.
            counted = here in self.leaving or thread.registers.will_restart
            inside = there in self._entering and there not in self._ends
            if inside and (there in self._interior or counted):
                there = self._entering[there]
            if there != here:
                move(thread, there, original)


def take_out(window: Window, detours: Sequence[Detour]) -> None:
    """In a process that has or inherited them: put the original bytes back wherever the jump is there."""
    text = Text(window.memory, sorted(detour.written for detour in detours))
    for detour in detours:
        if text.at(detour.site, JUMP_SIZE) == detour.jump:
            text.put(detour.site, detour.original)
    text.write()
    by_buffer = sorted(detours, key=attrgetter("buffer.address"))
    starts = [detour.buffer.address for detour in by_buffer]
    moves: dict[int, int] = {}
    for thread in window:
        at = bisect_right(starts, effective_ip(thread.registers)) - 1
        buffer = by_buffer[at].buffer if at >= 0 else None
        if buffer and window.memory.read_available(buffer.address, len(buffer.code)) == buffer.code:
            moves.update((copy, original) for original, copy in buffer.boundaries)
    evacuate(window, moves)


class OurCode(NamedTuple):
    """What is in the code arenas: at the start of each the `routines` that buffers call, then buffers; those
    of `detours` are in use in the target."""

    arenas: Sequence[Range]
    routines: Sequence[Range]
    detours: Sequence[Detour]


def follow(
    window: Window,
    changes: Sequence[Change],
    stale: Sequence[Detour],
    code: OurCode,
    guard: Guard | None,
) -> None:
    """Make changes of the target's text in a child that has inherited what was there before.

    What comes instead of a detour goes into the child as well, or its probes would count no more there. Where
    that cannot be (its arena is younger than the child, the place is or may be in use there) the child is
    only rid of the old one. `stale` are detours that may still be in use in some child.
    With a `guard` in the target, what is new goes only into children that have inherited it.
    """
    table = None
    if guard is not None and window.memory.read_available(guard.restorer, 1) == JUMP_OPCODE:
        table = CopyTable(window.memory, guard)
    used = [detour.buffer.span for detour in stale]
    if _is_in_a_lost_buffer(window, code):
        used = list(code.arenas)
    unguarded = guard is not None and table is None
    possible = [
        change
        for change in changes
        if change.new is None or (not unguarded and _has_room(window, change.new, used))
    ]
    for change in possible:
        if change.new is not None:
            window.memory.write(change.new.buffer.address, change.new.buffer.code)
    refused = TextChange(possible, stale, table).make(window, code.routines, lambda detour: None)
    done = {id(change) for index, change in enumerate(possible) if index not in refused}
    left = [detour for change in changes if id(change) not in done for detour in change.old]
    take_out(window, left)
    if table is not None:
        table.drop_arrivals(left, ())
        table.write()


def _is_in_a_lost_buffer(window: Window, code: OurCode) -> bool:
    """Whether a thread is in a buffer that the target has no more, and whose place it may have used since."""
    in_use = addresses_in_use(window, code.routines)
    ours = {ip for ip in in_use if any(ip in arena for arena in code.arenas)}
    lost = {ip for ip in ours if not any(ip in span for span in code.routines)}
    busy = lying_in(lost, [detour.buffer.span for detour in code.detours])
    for detour in code.detours:
        span = detour.buffer.span
        if span in busy and window.memory.read_available(span.start, span.size) == detour.buffer.code:
            lost = {ip for ip in lost if ip not in span}
    return bool(lost)


def _has_room(window: Window, new: Detour, used: Iterable[Range]) -> bool:
    span = new.buffer.span
    mapped = any(
        m.start <= span.start and span.end <= m.end and m.perms == "r-xp" and not m.inode for m in window.maps
    )
    return mapped and not any(place.overlaps(span) for place in used)


def evacuate(window: Window, moves: Mapping[int, int]) -> None:
    """Take threads that stand at a copy (a key) back to the original instruction (its value)."""
    for thread in window:
        original = moves.get(effective_ip(thread.registers))
        if original is not None:
            move(thread, original, original)


def in_flight(window: Window, spans: Sequence[Range], routines: Sequence[Range] = ()) -> set[Range]:
    """Which of our code spans some thread is in, or will return into. For buffers, where they call routines
    of ours that lie elsewhere, `routines` says where."""
    return lying_in(addresses_in_use(window, routines), spans)


def addresses_in_use(window: Window, routines: Sequence[Range], moved: Collection[int] = ()) -> set[int]:
    """Where each thread is, and where it will return to: from signal handlers, and from our `routines`.
    Threads at addresses from which they are `moved` count only for the signal handlers."""
    contexts = interrupted(window)
    contexts.update(
        Context(thread.registers.rip, thread.registers.rsp)
        for thread in window
        if effective_ip(thread.registers) not in moved
    )
    found = {context.ip for context in contexts}
    for context in contexts:
        if any(context.ip in span for span in routines):
            # One of the words is where it returns to. Of the others an address in a buffer does no harm.
            stack = window.memory.read_available(context.stack_pointer, STACK_OF_ROUTINES)
            found.update(struct.unpack(f"<{len(stack) // 8}Q", stack[: len(stack) // 8 * 8]))
    return found
