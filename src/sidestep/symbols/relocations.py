"""Dynamic relocations: which pointers in a file's data lead to code, and where its import slots are.

Types are those of the x86-64 psABI, section 4.4.
"""

from __future__ import annotations

import struct
from array import array
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from sidestep.symbols.elf import DT_STRTAB, SHT_DYNSYM, SHT_RELA, ElfFile, string_at
from sidestep.symbols.symbol_table import DT_STRSZ, DT_SYMTAB, LONGEST_NAME, SYMBOL

R_64, R_GLOB_DAT, R_JUMP_SLOT, R_RELATIVE, R_IRELATIVE = 1, 6, 7, 8, 37
DT_PLTRELSZ, DT_RELA, DT_RELASZ, DT_JMPREL, DT_RELRSZ, DT_RELR = 2, 7, 8, 23, 35, 36

_ENTRY = struct.Struct("<QQq")
_MOST_BYTES = 1 << 25
_MOST_PACKED = 2_000_000


class Slot(NamedTuple):
    """A pointer-sized word in data that the loader fills. `address` is the file's own."""

    address: int
    type: int


def relocation_tables(elf: ElfFile) -> Iterator[bytes]:
    """The raw 24-byte entries that apply at load time, one table after the other."""
    ranges: list[tuple[int, int]] = []
    for where, size in ((DT_RELA, DT_RELASZ), (DT_JMPREL, DT_PLTRELSZ)):
        address = elf.dynamic_address(where)
        if address is not None:
            ranges.append((address, elf.dynamic.get(size, 0)))
    if not elf.dynamic:  # A static program: its start-up code applies the tables that the sections show.
        ranges = [
            (section.address, section.size)
            for section in elf.sections
            if section.type == SHT_RELA and section.address
        ]
    done: list[tuple[int, int]] = []
    for address, size in ranges[:16]:
        if any(start <= address < end for start, end in done):
            continue
        done.append((address, address + size))
        raw = elf.read(address, min(size, _MOST_BYTES))
        yield raw[: len(raw) // _ENTRY.size * _ENTRY.size]


def text_pointers(elf: ElfFile) -> array[int]:
    """The distinct code addresses that relocations put into data (RELATIVE, IRELATIVE, RELR), ascending."""
    found: set[int] = set()
    for start, end in elf.text:
        for raw in relocation_tables(elf):
            columns = array("Q", raw)
            found.update(
                addend
                for kind, addend in zip(columns[1::3], columns[2::3], strict=True)
                if start <= addend < end and kind & 0xFFFFFFFF in (R_RELATIVE, R_IRELATIVE)
            )
        bias = elf.memory_bias
        packed = islice(_packed_values(elf), _MOST_PACKED)
        found.update(value - bias for value in packed if start <= value - bias < end)
    return array("Q", sorted(found))


def indirect_slots(elf: ElfFile) -> dict[int, list[int]]:
    """IRELATIVE relocations: from a resolver to the addresses of the slots that get what it returns."""
    slots: dict[int, list[int]] = defaultdict(list)
    for raw in relocation_tables(elf):
        for offset, info, addend in _ENTRY.iter_unpack(raw):
            if info & 0xFFFFFFFF == R_IRELATIVE:
                slots[addend].append(offset)
    return dict(slots)


def import_slots(elf: ElfFile, names: frozenset[str]) -> list[Slot]:
    """The slots that hold the address of a symbol of one of these names, in the order of the tables."""
    symbols, strings = elf.dynamic_address(DT_SYMTAB), elf.dynamic_address(DT_STRTAB)
    if symbols is None or strings is None:
        return []
    table = elf.read(strings, elf.dynamic.get(DT_STRSZ, 0))
    if not any(name.encode() in table for name in names):
        return []
    section = next((section for section in elf.sections if section.type == SHT_DYNSYM), None)
    wanted: dict[int, bool] = {}
    known = elf.read(symbols, section.size if section and section.address == symbols else 0)
    slots: list[Slot] = []
    for raw in relocation_tables(elf):
        for offset, info, addend in _ENTRY.iter_unpack(raw):
            kind, index = info & 0xFFFFFFFF, info >> 32
            if addend or kind not in (R_JUMP_SLOT, R_GLOB_DAT, R_64):
                continue
            if index not in wanted:
                position = index * SYMBOL.size
                entry = known[position : position + 4] or elf.read(symbols + position, 4)
                name = string_at(table, int.from_bytes(entry, "little"), LONGEST_NAME)
                wanted[index] = name in names
            if wanted[index]:
                slots.append(Slot(offset, kind))
    return slots


def _packed_values(elf: ElfFile) -> Iterator[int]:
    """The words that RELR entries relocate, as they stand in the file."""
    address = elf.dynamic_address(DT_RELR)
    if address is None:
        return
    raw = elf.read(address, min(elf.dynamic.get(DT_RELRSZ, 0), _MOST_BYTES))
    where = 0
    for (entry,) in struct.iter_unpack("<Q", raw[: len(raw) // 8 * 8]):
        if entry & 1:
            words = elf.read(where, 63 * 8)
            bits = entry >> 1
            for index in range(len(words) // 8):
                if bits >> index & 1:
                    yield int.from_bytes(words[index * 8 : index * 8 + 8], "little")
            where += 63 * 8
        else:
            yield int.from_bytes(elf.read(entry, 8), "little")
            where = entry + 8
