"""The table of copies in the target (arch.x86_64.signal_code): which address of a buffer stands for which
original, and where control goes that arrives inside a DCR.

It is changed while the target is stopped. Threads may search it meanwhile, from before the stop until after
it: an entry never moves, and what a search goes past is never made free while something lies behind it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from sidestep.address import PAGE
from sidestep.arch.x86_64.signal_code import (
    ENTRY_SIZE,
    FREE,
    GONE,
    TABLE_SLOTS,
    Entry,
    first_slot,
)
from sidestep.errors import TOO_MANY_PROBES, TargetError
from sidestep.target.base import Buffer, Detour, Memory

MOST_ENTRIES = TABLE_SLOTS // 4 * 3
SLOTS_OF_PAGE = PAGE // ENTRY_SIZE


def arrivals(detour: Detour) -> Iterator[Entry]:
    """For what returns to an instruction inside its DCR."""
    return (Entry.arrival(old, new) for old, new in detour.buffer.arrivals)


def copies(detour: Detour) -> Iterator[Entry]:
    """For what is interrupted in its buffer."""
    return (Entry.copy(*point) for point in detour.buffer.copies)


class Guard(NamedTuple):
    """Of a signal layer: where its table is, and the restorer, in which it has a hook."""

    table: int
    restorer: int


class CopyTable:
    """The table of a layer, read as far as it is needed, changed here, and written by `write`."""

    def __init__(self, memory: Memory, guard: Guard) -> None:
        self._memory, self._address = memory, guard.table
        self.restorer = guard.restorer
        self._pages: dict[int, array[int]] = {}
        self._changed: set[int] = set()
        self.taken = 0  # slots that are not free, as far as this object made them so
        self._promised = 0

    def promise(self, buffer: Buffer) -> bool:
        """Whether there is room for what will be entered of a buffer, with all that was promised since the
        last `write`. A search ends at a free slot, so there must always be some."""
        wanted = len(buffer.copies) + len(buffer.arrivals)
        if self.taken + self._promised + wanted > MOST_ENTRIES:
            return False
        self._promised += wanted
        return True

    def enter(self, detours: Iterable[Detour]) -> None:
        """All that is known about these. What is there already of their DCRs gets the new place."""
        for detour in detours:
            for key, value in (*copies(detour), *arrivals(detour)):
                self.put(key, value)

    def withdraw(self, new: Sequence[Detour], old: Sequence[Detour]) -> None:
        """What was entered of `new` detours is not to be: the `old` ones stay."""
        self.drop_arrivals(new, ())
        self.drop_copies(new)
        self.enter(old)

    def drop_arrivals(self, detours: Iterable[Detour], new: Sequence[Detour]) -> None:
        """Nobody is led into these any more; `new` detours may have taken over."""
        kept = {old for detour in new for old, _ in detour.buffer.arrivals}
        for detour in detours:
            for old, _ in detour.buffer.arrivals:
                if old not in kept:
                    self.remove(old)

    def drop_copies(self, detours: Iterable[Detour]) -> None:
        """Nobody is in their buffers any more."""
        for detour in detours:
            for point in detour.buffer.copies:
                self.remove(point.new)

    def put(self, key: int, value: int) -> None:
        gone, turns = -1, 0
        slot = first_slot(key)
        while (found := self._key(slot)) not in (key, FREE):
            if found == GONE and gone < 0:
                gone = slot
            slot, turns = slot + 1 & TABLE_SLOTS - 1, turns + 1
            if turns == TABLE_SLOTS:  # it is never filled: somebody wrote over it
                raise TargetError("the target", TOO_MANY_PROBES, "its table of copies is full")
        if found == FREE and gone < 0:
            self.taken += 1
        self._set(slot if found == key or gone < 0 else gone, key, value)

    def remove(self, key: int) -> None:
        slot, turns = first_slot(key), 0
        while (found := self._key(slot)) != key:
            slot, turns = slot + 1 & TABLE_SLOTS - 1, turns + 1
            if found == FREE or turns == TABLE_SLOTS:
                return
        self._set(slot, GONE, 0)
        while self._key(slot) == GONE and self._key(slot + 1 & TABLE_SLOTS - 1) == FREE:
            self._set(slot, FREE, 0)
            self.taken -= 1
            slot = slot - 1 & TABLE_SLOTS - 1

    def write(self) -> None:
        """Write what was changed since the last time."""
        for page in sorted(self._changed):
            self._memory.write(self._address + page * PAGE, self._pages[page].tobytes())
        self._changed.clear()
        self._promised = 0

    def _key(self, slot: int) -> int:
        content = self._pages.get(slot // SLOTS_OF_PAGE)
        if content is None:
            content = self._read(slot // SLOTS_OF_PAGE)
        return content[slot % SLOTS_OF_PAGE * 2]

    def _read(self, page: int) -> array[int]:
        content = array("Q", self._memory.read(self._address + page * PAGE, PAGE))
        self._pages[page] = content
        return content

    def _set(self, slot: int, key: int, value: int) -> None:
        page, at = divmod(slot, SLOTS_OF_PAGE)
        content = self._pages[page]
        content[at * 2], content[at * 2 + 1] = key, value
        self._changed.add(page)
