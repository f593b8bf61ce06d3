"""One ELF image: headers, segments, sections, notes, and its bytes by address.

x86-64 images only. Layouts are those of the System V ABI, chapters 4 and 5, and of the GNU extensions to it.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

from sidestep import errors
from sidestep.address import Range
from sidestep.errors import TargetError
from sidestep.symbols.content import (
    LARGEST_READ,
    BytesContent,
    Content,
    FileContent,
    MemoryContent,
    Reader,
    Segment,
)
from sidestep.symbols.printable import printable

EM_X86_64 = 62
PT_LOAD, PT_DYNAMIC, PT_INTERP, PT_NOTE = 1, 2, 3, 4
PT_GNU_EH_FRAME = 0x6474E550
PF_X, PF_W, PF_R = 1, 2, 4
SHT_SYMTAB, SHT_RELA, SHT_NOTE, SHT_NOBITS, SHT_DYNSYM = 2, 4, 7, 8, 11
SHF_ALLOC, SHF_EXECINSTR = 2, 4
NT_GNU_BUILD_ID = 3
DT_STRTAB, DT_SONAME = 5, 14

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_MOST_SEGMENTS = 4096
_LARGEST_CHECKED = 1 << 31
_MOST_SECTIONS = 1 << 16
_MOST_DYNAMIC_ENTRIES = 4096
_HIGHEST_ADDRESS = 1 << 62


class Section(NamedTuple):
    """One section header."""

    name: str
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    entry_size: int


class ElfFile:
    """An executable or shared object for x86-64.

    The constructors raise TargetError ELF_MALFORMED for what is no such thing and NOT_64_BIT for other
    machines. After that nothing raises: tables that are damaged or missing are empty.
    """

    def __init__(self, content: Content, name: str) -> None:
        self.name = name
        self._content = content
        self.find_symbols: Callable[[ElfFile], ElfFile | None] = lambda elf: None
        header = content.read(0, _HEADER.size)
        if len(header) < _HEADER.size or header[:4] != b"\x7fELF":
            raise TargetError(name, errors.ELF_MALFORMED, "it has no ELF header")
        (
            ident,
            kind,
            self.machine,
            _,
            self.entry,
            self._segment_offset,
            self._section_offset,
            _,
            _,
            segment_size,
            self._segment_count,
            section_size,
            self._section_count,
            self._section_names,
        ) = _HEADER.unpack(header)
        if ident[4] != 2 or ident[5] != 1 or self.machine != EM_X86_64:
            raise TargetError(name, errors.NOT_64_BIT, _identity(header))
        if kind not in (2, 3):
            raise TargetError(name, errors.ELF_MALFORMED, "neither an executable nor a shared object")
        if segment_size != _SEGMENT.size:
            raise TargetError(name, errors.ELF_MALFORMED, "its program headers have an unknown size")
        if section_size != _SECTION.size:
            self._section_count = self._section_offset = 0
        self.bits = 64
        self.type = "exec" if kind == 2 else "dyn"
        self.segments = self._read_segments()
        self.loads = [segment for segment in self.segments if segment.type == PT_LOAD]
        if not self.loads:
            raise TargetError(name, errors.ELF_MALFORMED, "it has no loadable segment")
        if isinstance(content, MemoryContent):
            first = min(self.loads, key=lambda load: load.offset)
            content.bias -= first.address - first.offset
            content.loads = self.loads

    @classmethod
    def open(cls, path: str, root: str | None = None) -> ElfFile:
        """The file at `path` (below `root`), held open as long as the object lives; tables are read when they
        are used."""
        return cls(FileContent(path, root), path)

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> ElfFile:
        return cls(BytesContent(data), name)

    @classmethod
    def from_memory(cls, read: Reader, base: int, name: str) -> ElfFile:
        """The image whose header lies at `base` in the target: without sections, its data as it is now."""
        return cls(MemoryContent(read, base), name)

    @cached_property
    def with_symbols(self) -> ElfFile:
        """The file that has the symbol table of this one: itself, or what `find_symbols` finds."""
        if any(section.type == SHT_SYMTAB for section in self.sections):
            return self
        return self.find_symbols(self) or self

    @property
    def is_pic(self) -> bool:
        """Whether it runs at any address, so that pointers to code in its data have relocations."""
        return self.type == "dyn"

    @property
    def identity(self) -> tuple[int, int] | None:
        """Device and inode of the file, None for images that are not in a file."""
        content = self._content
        return (content.device, content.inode) if isinstance(content, FileContent) else None

    @property
    def damage(self) -> str | None:
        """What is missing of the file, for people; None where nothing is."""
        content = self._content
        if not isinstance(content, FileContent):
            return None
        end = max(load.offset + load.file_size for load in self.loads)
        if content.size < end:
            return f"it has only {content.size:,} of its {end:,} bytes"
        if self._section_offset and len(self.sections) < min(self._section_count, _MOST_SECTIONS):
            return "its section headers are missing"
        return None

    @property
    def memory_bias(self) -> int:
        """What the loader has added to pointers that `read` gives: 0 unless that reads the target."""
        return self._content.bias if isinstance(self._content, MemoryContent) else 0

    @property
    def headers(self) -> bytes:
        """The ELF header with the program headers, as far as they lie in the first 4 KiB."""
        return self._content.read(0, min(4096, self._segment_offset + len(self.segments) * _SEGMENT.size))

    @cached_property
    def text(self) -> list[Range]:
        """The executable addresses that the file backs, ascending."""
        return sorted(
            Range(load.address, load.address + load.file_size)
            for load in self.loads
            if load.flags & PF_X and load.file_size
        )

    def in_text(self, address: int) -> bool:
        return any(start <= address < end for start, end in self.text)

    def read(self, address: int, size: int) -> bytes:
        """At most `size` bytes from an address of the file; zeros behind a segment's file content (BSS)."""
        size = min(size, LARGEST_READ)
        for load in self.loads:
            start = address - load.address
            if 0 <= start < load.memory_size:
                size = min(size, load.memory_size - start)
                if size <= 0:
                    return b""
                if isinstance(self._content, MemoryContent):
                    return self._content.read_address(self._content.bias + address, size)
                wanted = min(size, load.file_size - start)
                data = self._content.read(load.offset + start, wanted) if wanted > 0 else b""
                return data + bytes(size - len(data)) if len(data) >= wanted else data
        return b""

    def checksum(self) -> int | None:
        """The CRC-32 of the whole file, as .gnu_debuglink has it; None for one of more than 2 GiB."""
        value = offset = 0
        while data := self._content.read(offset, 1 << 20):
            value = zlib.crc32(data, value)
            offset += len(data)
            if offset > _LARGEST_CHECKED:
                return None
        return value

    def read_section(self, section: Section) -> bytes:
        return b"" if section.type == SHT_NOBITS else self._content.read(section.offset, section.size)

    def section(self, name: str) -> Section | None:
        return next((section for section in self.sections if section.name == name), None)

    @cached_property
    def sections(self) -> list[Section]:
        """Empty when the file has no section headers or they are damaged."""
        count = self._section_count
        if not self._section_offset or isinstance(self._content, MemoryContent):
            return []
        if count == 0:  # More than fits the field: the first section's size tells.
            first = self._content.read(self._section_offset, _SECTION.size)
            count = _SECTION.unpack(first)[5] if len(first) == _SECTION.size else 0
        count = min(count, _MOST_SECTIONS)
        raw = self._content.read(self._section_offset, count * _SECTION.size)
        rows = list(_SECTION.iter_unpack(raw[: len(raw) // _SECTION.size * _SECTION.size]))
        names = b""
        if self._section_names < len(rows):
            _, _, _, _, offset, size, *_ = rows[self._section_names]
            names = self._content.read(offset, min(size, 1 << 22))
        return [
            Section(string_at(names, name, 256), kind, flags, address, offset, size, link, info, entry_size)
            for name, kind, flags, address, offset, size, link, info, _, entry_size in rows
        ]

    @property
    def dynamic_section(self) -> Range | None:
        segment = self._first(PT_DYNAMIC)
        return Range(segment.address, segment.address + segment.memory_size) if segment else None

    @cached_property
    def dynamic(self) -> dict[int, int]:
        """The dynamic section: tag to value, the last of each tag, as the loader takes it."""
        section = self.dynamic_section
        if section is None:
            return {}
        raw = self.read(section.start, min(section.size, _MOST_DYNAMIC_ENTRIES * 16))
        entries: dict[int, int] = {}
        for tag, value in struct.iter_unpack("<QQ", raw[: len(raw) // 16 * 16]):
            if tag == 0:
                break
            entries[tag] = value
        return entries

    def dynamic_address(self, tag: int) -> int | None:
        """The address that a dynamic tag holds. In memory the loader may have added the bias to it."""
        value = self.dynamic.get(tag)
        if value is None or self._loaded(value):
            return value
        if isinstance(self._content, MemoryContent) and self._loaded(value - self._content.bias):
            return value - self._content.bias
        return None

    @cached_property
    def interpreter(self) -> str | None:
        """The path of the loader that the program asks for."""
        segment = self._first(PT_INTERP)
        if segment is None:
            return None
        return string_at(self._content.read(segment.offset, min(segment.file_size, 4096)), 0, 4096) or None

    @cached_property
    def soname(self) -> str | None:
        """The name that the file gives itself for those that link with it: `libz.so.1`."""
        strings, offset = self.dynamic_address(DT_STRTAB), self.dynamic.get(DT_SONAME)
        if strings is None or offset is None:
            return None
        return string_at(self.read(strings + offset, 256), 0, 255) or None

    @cached_property
    def build_id(self) -> str | None:
        """Hexadecimal digits."""
        for segment in self.segments:
            if segment.type == PT_NOTE:
                found = _build_id(self._content.read(segment.offset, min(segment.file_size, 1 << 16)))
                if found:
                    return found
        for section in self.sections:
            if section.type == SHT_NOTE:
                found = _build_id(self._content.read(section.offset, min(section.size, 1 << 16)))
                if found:
                    return found
        return None

    @cached_property
    def eh_frame_header(self) -> Range | None:
        """Where the sorted table of unwind entries is."""
        segment = self._first(PT_GNU_EH_FRAME)
        return Range(segment.address, segment.address + segment.memory_size) if segment else None

    @cached_property
    def relative_targets(self) -> array[int]:
        """The addresses in text that relocated pointers in the data hold, ascending."""
        from sidestep.symbols.relocations import text_pointers

        return text_pointers(self)

    def _first(self, kind: int) -> Segment | None:
        return next((segment for segment in self.segments if segment.type == kind), None)

    def _loaded(self, address: int) -> bool:
        return any(load.address <= address < load.address + load.memory_size for load in self.loads)

    def _read_segments(self) -> list[Segment]:
        count = self._segment_count
        if count == 0xFFFF:  # The true count is in a section header; no loadable file needs it.
            count = _MOST_SEGMENTS
        raw = self._content.read(self._segment_offset, min(count, _MOST_SEGMENTS) * _SEGMENT.size)
        segments: list[Segment] = []
        for kind, flags, offset, address, _, file_size, memory_size, _ in _SEGMENT.iter_unpack(
            raw[: len(raw) // _SEGMENT.size * _SEGMENT.size]
        ):
            if max(offset, address, file_size, memory_size) >= _HIGHEST_ADDRESS:
                continue
            segments.append(Segment(kind, flags, offset, address, min(file_size, memory_size), memory_size))
        return segments


def string_at(table: bytes, offset: int, longest: int) -> str:
    """The NUL-ended string at an offset of a string table, fit to be printed; empty when it is not there."""
    end = table.find(b"\0", offset, offset + longest + 1)
    return printable(table[offset:end]) if end >= 0 else printable(table[offset : offset + longest])


def _build_id(notes: bytes) -> str | None:
    position = 0
    while position + 12 <= len(notes):
        name_size, size, kind = struct.unpack_from("<III", notes, position)
        name = position + 12
        content = name + (name_size + 3 & ~3)
        if kind == NT_GNU_BUILD_ID and notes[name : name + name_size] == b"GNU\0" and 0 < size <= 64:
            found = notes[content : content + size]
            return found.hex() if len(found) == size else None
        position = content + (size + 3 & ~3)
    return None


def _identity(header: bytes) -> str:
    machine = int.from_bytes(header[18:20], "big" if header[5] == 2 else "little")
    names = {
        3: "i386",
        40: "arm",
        62: "x32",
        183: "aarch64",
        243: "riscv",
        21: "ppc64",
        22: "s390",
        8: "mips",
    }
    return f"the file is for {names.get(machine, f'machine {machine}')}"
