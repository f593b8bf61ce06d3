"""The rows of .symtab and .dynsym, with versions; kept as columns, so that large programs stay cheap.

Names are decoded when they are asked for. A table that is damaged contributes the rows before the damage.
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple
from weakref import WeakKeyDictionary

from sidestep.symbols.elf import DT_STRTAB, SHF_EXECINSTR, SHT_DYNSYM, SHT_SYMTAB, ElfFile, string_at
from sidestep.symbols.names import without_renaming

STT_NOTYPE, STT_OBJECT, STT_FUNC, STT_TLS, STT_GNU_IFUNC = 0, 1, 2, 6, 10
STB_LOCAL, STB_GLOBAL, STB_WEAK = 0, 1, 2
SHN_UNDEF, SHN_LORESERVE = 0, 0xFF00
DT_HASH, DT_SYMTAB, DT_STRSZ, DT_GNU_HASH = 4, 6, 10, 0x6FFFFEF5
DT_VERSYM, DT_VERDEF, DT_VERDEFNUM = 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFD

SYMBOL = struct.Struct("<IBBHQQ")
LONGEST_NAME = 4096
_MOST_SYMBOLS = 2_000_000
_MOST_HELD = 1 << 30
"""Bytes of tables of all files together; those of further files are left out. A program can map thousands."""
_LARGEST_TEXT = 1 << 25
_MOST_OFFSETS = 1 << 20
_LOOKUPS_BEFORE_INDEX, _LARGEST_INDEX = 8, 1 << 19
_HIDDEN = 0x8000
_held: WeakKeyDictionary[ElfFile, dict[int, int]] = WeakKeyDictionary()  # bytes, by kind of table
_NOT_PLAIN = re.compile(rb"[^\x00\x20-\x7e]")

# Labels that linkers put at the bounds of sections; they are not functions.
_BOUNDS = re.compile(
    r"_*(?:etext|edata|end|executable_start|bss_start|TMC_END_?)|__(?:start|stop)_.*|.*_(?:start|end)"
)


class SymbolTable(NamedTuple):
    """The raw bytes of one table: 24-byte symbols, their strings, the version index of each (or nothing), and
    the indices of its file's sections that hold code."""

    symbols: bytes
    strings: bytes
    versions: array[int]
    code_sections: frozenset[int]


class DataSymbol(NamedTuple):
    """A symbol that is no function: `type` is STT_OBJECT, STT_NOTYPE or STT_TLS."""

    address: int
    size: int
    type: int


class FunctionRows:
    """Every symbol of a file that stands for code, one row each: .symtab's first, then .dynsym's.

    `starts`, `sizes` and `infos` are st_value, st_size and st_info.
    """

    def __init__(self, elf: ElfFile, tables: Sequence[SymbolTable]) -> None:
        self._elf = elf
        self.starts = array("Q")
        self.sizes = array("Q")
        self.infos = array("B")
        self._offsets = array("I")
        self._versions = array("H")
        self._strings = [table.strings for table in tables]
        # Tables of plain characters are decoded at once; each name is then a slice.
        self._texts = [
            strings.decode("latin-1")
            if len(strings) <= _LARGEST_TEXT and not _NOT_PLAIN.search(strings)
            else None
            for strings in self._strings
        ]
        self._splits: list[int] = []
        self._lookups = 0
        self._indices: dict[int, dict[int, list[int]]] = {}
        for table in tables:
            self._add(table)
            self._splits.append(len(self.starts))

    def _add(self, table: SymbolTable) -> None:
        text = self._elf.text
        if not text:
            return
        low, high = text[0].start, text[-1].end
        holes = [(before.end, after.start) for before, after in pairwise(text)]
        versions = table.versions if len(table.versions) * SYMBOL.size == len(table.symbols) else None
        add_start, add_size, add_info = self.starts.append, self.sizes.append, self.infos.append
        add_offset, add_version = self._offsets.append, self._versions.append
        index = -1
        for offset, info, _, section, value, size in SYMBOL.iter_unpack(table.symbols):
            index += 1
            kind = info & 15
            if not low <= value < high or section == SHN_UNDEF:
                continue
            if kind != STT_FUNC and kind != STT_GNU_IFUNC:
                # Assembly without .type: a label counts if other files can see it.
                if kind != STT_NOTYPE or info >> 4 == STB_LOCAL or section not in table.code_sections:
                    continue
                if _BOUNDS.fullmatch(string_at(table.strings, offset, LONGEST_NAME)):
                    continue
            if holes and any(start <= value < end for start, end in holes):
                continue
            add_start(value)
            add_size(size)
            add_info(info)
            add_offset(offset)
            add_version(versions[index] if versions else 0)

    def __len__(self) -> int:
        return len(self.starts)

    def name(self, row: int) -> str:
        """Without a version."""
        return self._name_and_version(row)[0]

    def qualified_name(self, row: int) -> str:
        """With `@VERSION` where that is not the default version, so that it names this symbol alone."""
        name, version = self._name_and_version(row)
        return name if version is None or version.startswith("@") else f"{name}@{version}"

    def is_default(self, row: int) -> bool:
        """Whether a reference without a version means this symbol."""
        version = self._name_and_version(row)[1]
        return version is None or version.startswith("@")

    def _name_and_version(self, row: int) -> tuple[str, str | None]:
        """The version of the default symbol has a `@` in front (`name@@VERSION`); None: it has no version."""
        name = self._raw_name(row)
        index = self._versions[row]
        if index <= 1 and "@" not in name:
            return name, None
        if "@" in name:  # .symtab keeps the version in the name.
            name, _, version = name.partition("@")
            return name, version
        if index & ~_HIDDEN > 1:
            version = self._version_names.get(index & ~_HIDDEN, "")
            return name, version if index & _HIDDEN else f"@{version}"
        return name, None

    def _raw_name(self, row: int) -> str:
        table = 0 if row < self._splits[0] else 1
        text, start = self._texts[table], self._offsets[row]
        if text is None:
            return string_at(self._strings[table], start, LONGEST_NAME)
        end = text.find("\0", start, start + LONGEST_NAME)
        return text[start : end if end >= 0 else start + LONGEST_NAME]

    def names(self) -> Iterator[str]:
        """Of every row in order, without versions."""
        for row in range(len(self.starts)):
            name = self._raw_name(row)
            yield name.partition("@")[0] if "@" in name else name

    def find(self, name: str) -> list[int]:
        """The rows of that name. With `@VERSION` or `@@VERSION` of that version only, else of any version.

        A static function that link-time optimisation renamed (`f.llvm.1`) is found by the name it had.
        """
        base, at, wanted = name.partition("@")
        if not base:
            return []
        wanted = wanted.removeprefix("@")
        found: list[int] = []
        for table, strings in enumerate(self._strings):
            offsets = _offsets_of(base, strings, (b"\0", b"@", b".llvm.", b".lto_priv."))
            if offsets:
                found += self._rows_named(table, offsets)
        found = [row for row in found if without_renaming(self.name(row)) == without_renaming(base)]
        if at:
            found = [
                row for row in found if (self._name_and_version(row)[1] or "").removeprefix("@") == wanted
            ]
        return found

    def _rows_named(self, table: int, offsets: set[int]) -> list[int]:
        """The rows of a table whose names stand at these offsets."""
        first, last = self._splits[table - 1] if table else 0, self._splits[table]
        self._lookups += 1
        if self._lookups <= _LOOKUPS_BEFORE_INDEX or last > _LARGEST_INDEX:
            return [row for row in range(first, last) if self._offsets[row] in offsets]
        index = self._indices.get(table)
        if index is None:
            index = self._indices[table] = {}
            for row in range(first, last):
                index.setdefault(self._offsets[row], []).append(row)
        return sorted(row for offset in offsets for row in index.get(offset, ()))

    @cached_property
    def _version_names(self) -> dict[int, str]:
        return read_version_names(self._elf)


def _offsets_of(name: str, strings: bytes, ends: Sequence[bytes]) -> set[int]:
    """Where `name` stands in a string table before one of `ends`, maybe as the end of another name."""
    found: set[int] = set()
    for end in ends:
        raw = name.encode("utf-8", "surrogateescape") + end
        at = strings.find(raw)
        while at >= 0 and len(found) < _MOST_OFFSETS:
            found.add(at)
            at = strings.find(raw, at + 1)
    return found


def read_tables(elf: ElfFile) -> list[SymbolTable]:
    """.symtab if there is one, here or in a file of its own, then .dynsym."""
    full, dynamic = _table_of(elf.with_symbols, SHT_SYMTAB), _table_of(elf, SHT_DYNSYM) or _dynamic_table(elf)
    return [table for table in (full, dynamic) if table is not None]


def _table_of(elf: ElfFile, kind: int) -> SymbolTable | None:
    section = next((section for section in elf.sections if section.type == kind), None)
    if section is None or section.link >= len(elf.sections) or _others_hold(elf) >= _MOST_HELD:
        return None
    symbols = elf.read_section(section)[: _MOST_SYMBOLS * SYMBOL.size]
    strings = elf.read_section(elf.sections[section.link])
    symbols = symbols[: len(symbols) // SYMBOL.size * SYMBOL.size]
    _held.setdefault(elf, {})[kind] = len(symbols) + len(strings)
    versions = _version_indices(elf, len(symbols) // SYMBOL.size) if kind == SHT_DYNSYM else array("H")
    return SymbolTable(symbols, strings, versions, _code_sections(elf))


def _others_hold(elf: ElfFile) -> int:
    return sum(sum(sizes.values()) for other, sizes in _held.items() if other is not elf)


def _code_sections(elf: ElfFile) -> frozenset[int]:
    return frozenset(index for index, section in enumerate(elf.sections) if section.flags & SHF_EXECINSTR)


def has_symbol(elf: ElfFile, name: str) -> bool:
    """Whether a symbol has exactly this name, without its version; imported ones count.

    Linkers store a name that ends another one (`rt_sigaction`, `sigaction`) inside of it, so that the
    string table alone does not tell.
    """
    for table in read_tables(elf):
        offsets = _offsets_of(name, table.strings, (b"\0", b"@"))
        if offsets and not offsets.isdisjoint(array("I", table.symbols)[:: SYMBOL.size // 4]):
            return True
    return False


def find_data(elf: ElfFile, name: str) -> DataSymbol | None:
    """The variable of that name: a global one if there is one, of the default version."""
    best: DataSymbol | None = None
    for table in read_tables(elf):
        offsets = _offsets_of(name, table.strings, (b"\0", b"@@"))
        if not offsets:
            continue
        for index, (offset, info, _, section, value, size) in enumerate(SYMBOL.iter_unpack(table.symbols)):
            if (
                offset not in offsets
                or section == SHN_UNDEF
                or info & 15 not in (STT_OBJECT, STT_NOTYPE, STT_TLS)
            ):
                continue
            if index < len(table.versions) and table.versions[index] & _HIDDEN:
                continue
            symbol = DataSymbol(value, size, info & 15)
            if info >> 4 != STB_LOCAL:
                return symbol
            best = best or symbol
    return best


def _dynamic_table(elf: ElfFile) -> SymbolTable | None:
    """.dynsym found without section headers, through the dynamic section."""
    symbols, strings = elf.dynamic_address(DT_SYMTAB), elf.dynamic_address(DT_STRTAB)
    if symbols is None or strings is None:
        return None
    count = min(_dynamic_count(elf), _MOST_SYMBOLS)
    raw = elf.read(symbols, count * SYMBOL.size)
    raw = raw[: len(raw) // SYMBOL.size * SYMBOL.size]
    names = elf.read(strings, elf.dynamic.get(DT_STRSZ, 0))
    versions = _version_indices(elf, len(raw) // SYMBOL.size)
    return SymbolTable(raw, names, versions, _code_sections(elf))


def _dynamic_count(elf: ElfFile) -> int:
    """The number of dynamic symbols, which only the hash tables tell."""
    table = elf.dynamic_address(DT_HASH)
    if table is not None:
        header = elf.read(table, 8)
        return int.from_bytes(header[4:8], "little")
    table = elf.dynamic_address(DT_GNU_HASH)
    header = elf.read(table, 16) if table is not None else b""
    if table is None or len(header) < 16:
        return 0
    bucket_count, first, bloom_size, _ = struct.unpack("<IIII", header)
    if bucket_count > _MOST_SYMBOLS or bloom_size > _MOST_SYMBOLS:
        return 0
    buckets = array("I")
    raw = elf.read(table + 16 + bloom_size * 8, bucket_count * 4)
    buckets.frombytes(raw[: len(raw) // 4 * 4])
    last = max(buckets, default=0)
    if last < first:
        return int(first)
    # The last chain ends with an odd hash.
    chains = table + 16 + bloom_size * 8 + bucket_count * 4
    while last - first < _MOST_SYMBOLS:
        raw = elf.read(chains + (last - first) * 4, 4096)
        if len(raw) < 4:
            break
        for (value,) in struct.iter_unpack("<I", raw[: len(raw) // 4 * 4]):
            last += 1
            if value & 1:
                return last
    return last


def _version_indices(elf: ElfFile, count: int) -> array[int]:
    indices = array("H")
    address = elf.dynamic_address(DT_VERSYM)
    if address is not None:
        raw = elf.read(address, count * 2)
        indices.frombytes(raw[: len(raw) // 2 * 2])
    return indices


def read_version_names(elf: ElfFile) -> dict[int, str]:
    """Version index to name, of the versions that the file defines."""
    address, strings = elf.dynamic_address(DT_VERDEF), elf.dynamic_address(DT_STRTAB)
    names: dict[int, str] = {}
    if address is None or strings is None:
        return names
    table = elf.read(strings, elf.dynamic.get(DT_STRSZ, 0))
    for _ in range(min(elf.dynamic.get(DT_VERDEFNUM, 0), 1 << 12)):
        raw = elf.read(address, 20)
        if len(raw) < 20:
            break
        _, _, index, _, _, auxiliary, following = struct.unpack("<HHHHIII", raw)
        name = elf.read(address + auxiliary, 4)
        if len(name) == 4:
            names[index & ~_HIDDEN] = string_at(table, int.from_bytes(name, "little"), 256)
        if not following:
            break
        address += following
    return names
