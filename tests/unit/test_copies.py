"""The table of copies: what is found after entries came and went, and what a search relies on."""

from __future__ import annotations

import random
import struct

import pytest

from sidestep.arch.x86_64.signal_code import (
    ENTRY_SIZE,
    FREE,
    GONE,
    IS_COPY,
    IS_PUSHED,
    TABLE_SIZE,
    TABLE_SLOTS,
    Entry,
    first_slot,
)
from sidestep.errors import TOO_MANY_PROBES, TargetError
from sidestep.target.process.copies import CopyTable, Guard

ADDRESS = 0x7000_0000_0000


class SparseMemory:
    """Memory of the table, of which most is zero."""

    def __init__(self) -> None:
        self.pages: dict[int, bytes] = {}

    def read(self, address: int, size: int) -> bytes:
        assert ADDRESS <= address < ADDRESS + TABLE_SIZE
        assert address % size == 0
        return self.pages.get(address, bytes(size))

    def read_available(self, address: int, size: int) -> bytes:
        return self.read(address, size)

    def write(self, address: int, data: bytes) -> None:
        self.pages[address] = data

    def slot(self, number: int) -> Entry:
        page, start = divmod(number * ENTRY_SIZE, 4096)
        content = self.pages.get(ADDRESS + page * 4096, bytes(4096))
        return Entry(*struct.unpack_from("<QQ", content, start))

    def search(self, key: int) -> int | None:
        """As the code in the target does it."""
        number = first_slot(key)
        while True:
            found = self.slot(number)
            if found.key == key:
                return found.value
            if found.key == FREE:
                return None
            number = (number + 1) % TABLE_SLOTS


def table(memory: SparseMemory) -> CopyTable:
    return CopyTable(memory, Guard(ADDRESS, 0))


def test_entries_say_where_a_copy_belongs() -> None:
    assert Entry.copy(0x5000, 0x1234, 8) == (0x5000, 0x1234 << 2 | IS_COPY | IS_PUSHED)
    assert Entry.copy(0x5000, 0x1234, 0) == (0x5000, 0x1234 << 2 | IS_COPY)
    assert Entry.arrival(0x1234, 0x5000) == (0x1234, 0x5000 << 2)


def test_what_comes_and_goes_is_found() -> None:
    """Neighbours, which share slots, and the wrap at the table's end."""
    chance = random.Random(3)
    memory, true = SparseMemory(), dict[int, int]()
    tried = table(memory)
    bases = (0x40_0000, 0x40_0000 + 4 * TABLE_SLOTS - 40, 0x7F12_3456_7000)
    for turn in range(4000):
        key = chance.choice(bases) + chance.randrange(80)
        if chance.random() < 0.55:
            true[key] = turn
            tried.put(key, turn)
        else:
            true.pop(key, None)
            tried.remove(key)
        if turn % 50 == 0:
            tried.write()
            for base in bases:
                for each in range(base, base + 80):
                    assert memory.search(each) == true.get(each)
    for key in list(true):
        tried.remove(key)
    tried.write()
    assert tried.taken == 0
    assert not any(any(page) for page in memory.pages.values())


def test_an_entry_keeps_its_slot_while_others_come_and_go() -> None:
    """A thread may have been stopped in the middle of its search."""
    memory = SparseMemory()
    tried = table(memory)
    keys = [0x40_0000 + number for number in range(4)]  # all of them begin at one slot
    for key in keys:
        tried.put(key, 1)
    tried.remove(keys[1])
    tried.write()
    first = first_slot(keys[0])
    assert [memory.slot(first + number).key for number in range(4)] == [keys[0], GONE, keys[2], keys[3]]
    tried.put(0x40_0000 + 4 * TABLE_SLOTS, 2)
    tried.write()
    assert memory.slot(first + 1).key == 0x40_0000 + 4 * TABLE_SLOTS
    assert memory.search(keys[3]) == 1


def test_another_controller_of_the_same_memory_reads_what_is_there() -> None:
    """As in a forked child, whose table has gone its own way."""
    memory = SparseMemory()
    first = table(memory)
    first.put(0x40_0000, 7)
    first.write()
    second = table(memory)
    second.remove(0x40_0000)
    second.put(0x40_0001, 8)
    second.write()
    assert memory.search(0x40_0000) is None
    assert memory.search(0x40_0001) == 8


def test_a_table_that_was_written_over_holds_nobody_up() -> None:
    class Filled(SparseMemory):
        def read(self, address: int, size: int) -> bytes:
            return Entry(5, 5).key.to_bytes(8, "little") * (size // 8)

    filled = table(Filled())
    filled.remove(0x1234)
    with pytest.raises(TargetError) as refused:
        filled.put(0x1234, 1)
    assert refused.value.reason is TOO_MANY_PROBES
