"""Unwind entries: where functions start and end when there are no symbols, and where exceptions land.

.eh_frame_hdr and .eh_frame as in the LSB Core, chapter 10.6; the call-site table of the language-specific
data
area (LSDA) as GCC and LLVM write it.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from functools import cached_property
from typing import NamedTuple

from sidestep.symbols.elf import ElfFile

_MOST_ENTRIES = 1_000_000
_MOST_CALL_SITES = 1 << 16

# Pointer encodings (DW_EH_PE_*): the low four bits are the format, the next three what it is relative to.
_OMIT, _ULEB128, _SLEB128, _INDIRECT = 0xFF, 0x01, 0x09, 0x80
_PC_RELATIVE, _DATA_RELATIVE = 0x10, 0x30
_LENGTH_AND_KIND = struct.Struct("<II")
_FORMATS = {
    0x00: struct.Struct("<Q"),
    0x02: struct.Struct("<H"),
    0x03: struct.Struct("<I"),
    0x04: struct.Struct("<Q"),
    0x0A: struct.Struct("<h"),
    0x0B: struct.Struct("<i"),
    0x0C: struct.Struct("<q"),
}


class _MalformedError(Exception):
    """A table cannot be read on. Never leaves this module."""


class FrameEntry(NamedTuple):
    """What one frame description entry (FDE) covers; `lsda` is the address of its exception table."""

    start: int
    end: int
    lsda: int | None


class _CommonEntry(NamedTuple):
    """What the common information entry (CIE) of an FDE says about the form of its pointers."""

    pointer_encoding: int
    lsda_encoding: int
    has_augmentation: bool


class _Cursor:
    """Reads numbers one after the other; raises _MalformedError at the end of the data."""

    def __init__(self, data: bytes, address: int) -> None:
        self.data, self.address, self.position = data, address, 0

    def number(self, size: int) -> int:
        end = self.position + size
        if end > len(self.data):
            raise _MalformedError
        value = int.from_bytes(self.data[self.position : end], "little")
        self.position = end
        return value

    def uleb128(self) -> int:
        value = shift = 0
        while shift < 70:
            byte = self.number(1)
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
        raise _MalformedError

    def sleb128(self) -> int:
        start = self.position
        value = self.uleb128()
        bits = 7 * (self.position - start)
        return value - (1 << bits) if value >> (bits - 1) else value

    def pointer(self, encoding: int, data_base: int = 0) -> int | None:
        """An encoded pointer; None where it is omitted or null."""
        if encoding == _OMIT:
            return None
        here = self.address + self.position
        form = encoding & 0x0F
        if form == _ULEB128:
            value = self.uleb128()
        elif form == _SLEB128:
            value = self.sleb128()
        else:
            layout = _FORMATS.get(form)
            if layout is None or self.position + layout.size > len(self.data):
                raise _MalformedError
            (value,) = layout.unpack_from(self.data, self.position)
            self.position += layout.size
        if value == 0:
            return None
        relative = encoding & 0x70
        if relative == _PC_RELATIVE:
            value += here
        elif relative == _DATA_RELATIVE:
            value += data_base
        elif relative:
            raise _MalformedError
        return value & 0xFFFFFFFFFFFFFFFF


class FdeTable:
    """The functions that have unwind information, by start address.

    Made from the binary search table in .eh_frame_hdr, or by a walk over .eh_frame where there is none (in
    static programs). An entry's end and exception table are decoded when they are asked for. Empty when the
    file has neither, or they are damaged.
    """

    def __init__(self, elf: ElfFile) -> None:
        self._elf = elf
        self._common: dict[int, _CommonEntry | None] = {}
        try:
            rows = self._read_header()
        except _MalformedError:
            rows = []
        rows = sorted(rows or self._walk())
        self.starts = array("Q", [row[0] for row in rows])
        self._entries = array("Q", [row[1] for row in rows])

    def __len__(self) -> int:
        return len(self.starts)

    def _read_header(self) -> list[tuple[int, int]]:
        """The start and the FDE's address of each function."""
        header = self._elf.eh_frame_header
        bounds = self._elf.text
        if header is None or not bounds:
            return []
        raw = self._elf.read(header.start, min(header.size, 20 + _MOST_ENTRIES * 8))
        cursor = _Cursor(raw, header.start)
        version, frame, count_encoding, table_encoding = (cursor.number(1) for _ in range(4))
        if version != 1:
            return []
        cursor.pointer(frame, header.start)
        count = cursor.pointer(count_encoding, header.start) or 0
        if table_encoding != (_DATA_RELATIVE | 0x0B):  # The only form that linkers write.
            return []
        pairs = array("i")
        table = raw[cursor.position : cursor.position + min(count, _MOST_ENTRIES) * 8]
        pairs.frombytes(table[: len(table) // 8 * 8])
        base = header.start
        low, high = bounds[0].start - base, bounds[-1].end - base
        return [
            (start + base, entry + base)
            for start, entry in zip(pairs[0::2], pairs[1::2], strict=True)
            if low <= start < high and entry + base > 0
        ]

    def _walk(self) -> list[tuple[int, int]]:
        """As `_read_header`, from one entry of .eh_frame to the next, until the first that is damaged."""
        section = self._elf.section(".eh_frame")
        if section is None:
            return []
        data = self._elf.read_section(section)
        rows: list[tuple[int, int]] = []
        position = 0
        while position + 8 <= len(data) and len(rows) < _MOST_ENTRIES:
            length, kind = _LENGTH_AND_KIND.unpack_from(data, position)
            if length == 0:  # The end of one input file's entries, in some links.
                position += 4
                continue
            if length == 0xFFFFFFFF:
                length = int.from_bytes(data[position + 4 : position + 12], "little") + 8
                kind = int.from_bytes(data[position + 12 : position + 16], "little")
            if kind:
                try:
                    start = self._decode(section.address + position).start
                except _MalformedError:
                    break
                if self._elf.in_text(start):
                    rows.append((start, section.address + position))
            position += 4 + length
        return rows

    def at(self, start: int) -> FrameEntry | None:
        """The entry that starts at exactly this address."""
        entry = self.containing(start)
        return entry if entry is not None and entry.start == start else None

    def containing(self, address: int) -> FrameEntry | None:
        """The entry that covers an address; None where there is none or it is damaged."""
        index = bisect_right(self.starts, address) - 1
        if index < 0:
            return None
        try:
            entry = self._decode(self._entries[index])
        except _MalformedError:
            return None
        if entry.start != self.starts[index] or not entry.start <= address < entry.end:
            return None
        return entry

    def landing_pads(self, start: int) -> list[int] | None:
        """The addresses where exceptions raised in the function at `start` may land, ascending.

        None: not known, its tables are damaged. A landing pad may lie in another part of the function
        (`.cold`), and that part's own entry may have pads in this one: see `all_landing_pads`.
        """
        index = bisect_right(self.starts, start) - 1
        if index < 0 or self.starts[index] != start:
            return []
        try:
            if not self._has_lsda(self._entries[index]):
                return []
            entry = self._decode(self._entries[index])
            return [] if entry.lsda is None else self._read_call_sites(entry)
        except _MalformedError:
            return None

    @cached_property
    def all_landing_pads(self) -> tuple[array[int], list[FrameEntry]]:
        """Every landing pad of the file, ascending, and the entries whose tables could not be read."""
        pads: set[int] = set()
        unknown: list[FrameEntry] = []
        for start, where in zip(self.starts, self._entries, strict=True):
            try:
                entry = self._decode(where)
            except _MalformedError:
                unknown.append(FrameEntry(start, start + 1, None))
                continue
            if entry.lsda is not None:
                try:
                    pads.update(self._read_call_sites(entry))
                except _MalformedError:
                    unknown.append(entry)
        return array("Q", sorted(pads)), unknown

    def _has_lsda(self, address: int) -> bool:
        """Whether entries of this one's kind have a place for an exception table: most in C have none."""
        head = self._elf.read(address, _LENGTH_AND_KIND.size)
        if len(head) < _LENGTH_AND_KIND.size:
            raise _MalformedError
        length, back = _LENGTH_AND_KIND.unpack(head)
        if length == 0xFFFFFFFF:
            return True
        common = self._common_entry(address + 4 - back)
        return common.has_augmentation and common.lsda_encoding != _OMIT

    def _decode(self, address: int) -> FrameEntry:
        data = self._elf.read(address, 64)
        cursor = _Cursor(data, address)
        length = cursor.number(4)
        if length == 0xFFFFFFFF:
            length = cursor.number(8)
        if length == 0:
            raise _MalformedError
        back = cursor.address + cursor.position
        common = self._common_entry(back - cursor.number(4))
        start = cursor.pointer(common.pointer_encoding)
        size = cursor.pointer(common.pointer_encoding & 0x0F)
        if start is None or not size or size >= 1 << 40:
            raise _MalformedError
        lsda = None
        if common.has_augmentation and common.lsda_encoding != _OMIT:
            cursor.uleb128()
            lsda = cursor.pointer(common.lsda_encoding)
            if lsda is not None and common.lsda_encoding & _INDIRECT:
                lsda = int.from_bytes(self._elf.read(lsda, 8), "little") or None
        return FrameEntry(start, start + size, lsda)

    def _common_entry(self, address: int) -> _CommonEntry:
        if address not in self._common:
            if len(self._common) > 4096:
                self._common.clear()
            try:
                self._common[address] = self._read_common_entry(address)
            except _MalformedError:
                self._common[address] = None
        common = self._common[address]
        if common is None:
            raise _MalformedError
        return common

    def _read_common_entry(self, address: int) -> _CommonEntry:
        cursor = _Cursor(self._elf.read(address, 256), address)
        if cursor.number(4) == 0xFFFFFFFF:
            cursor.number(8)
        if cursor.number(4) != 0:
            raise _MalformedError
        version = cursor.number(1)
        end = cursor.data.find(b"\0", cursor.position)
        if end < 0:
            raise _MalformedError
        augmentation = cursor.data[cursor.position : end]
        cursor.position = end + 1
        cursor.uleb128()
        cursor.sleb128()
        if version == 1:
            cursor.number(1)
        else:
            cursor.uleb128()
        pointer_encoding, lsda_encoding = 0, _OMIT
        if augmentation[:1] == b"z":
            cursor.uleb128()
            for letter in augmentation[1:]:
                if letter == ord("R"):
                    pointer_encoding = cursor.number(1)
                elif letter == ord("L"):
                    lsda_encoding = cursor.number(1)
                elif letter == ord("P"):
                    cursor.pointer(cursor.number(1))
                elif letter not in b"SB":
                    raise _MalformedError
        elif augmentation:
            raise _MalformedError
        return _CommonEntry(pointer_encoding, lsda_encoding, augmentation[:1] == b"z")

    def _read_call_sites(self, entry: FrameEntry) -> list[int]:
        if entry.lsda is None:
            return []
        cursor = _Cursor(self._elf.read(entry.lsda, 64), entry.lsda)
        base = cursor.pointer(cursor.number(1))
        if base is None:
            base = entry.start
        if cursor.number(1) != _OMIT:
            cursor.uleb128()
        encoding = cursor.number(1)
        size = cursor.uleb128()
        if size > 1 << 20:
            raise _MalformedError
        sites = _Cursor(self._elf.read(cursor.address + cursor.position, size), 0)
        pads: set[int] = set()
        for _ in range(_MOST_CALL_SITES):
            if sites.position >= size:
                return sorted(pads)
            sites.pointer(encoding)
            sites.pointer(encoding)
            pad = sites.pointer(encoding)
            sites.uleb128()
            if pad is not None:
                pads.add(base + pad)
        raise _MalformedError
