"""Symbols that were split off a stripped file: mini debug information inside of it, or a file of their own.

In the order in which they are looked for (the manual of gdb: "Separate Debug Files" and "MiniDebugInfo"):

* /usr/lib/debug/.build-id/ab/cdef.debug, which must have the same build-id;
* the file that .gnu_debuglink names, beside the file, in .debug there or below /usr/lib/debug: its CRC fits;
* .gnu_debugdata: an ELF file compressed with LZMA, which holds the functions that .dynsym does not.
"""

from __future__ import annotations

import lzma
import posixpath
from collections.abc import Iterator

from sidestep.errors import TargetError
from sidestep.symbols.elf import SHT_SYMTAB, ElfFile

DEBUG_FOLDER = "/usr/lib/debug"
_LARGEST_EXPANDED = 1 << 26  # bytes
_MOST_MEMORY = 1 << 27  # bytes, for the decompressor


def find_symbols(elf: ElfFile, path: str, root: str | None) -> ElfFile | None:
    """The file with the symbol table of `elf`, which lies at `path` below `root`; None if there is none."""
    return _by_build_id(elf, root) or _by_link(elf, path, root) or _expanded(elf)


def _by_build_id(elf: ElfFile, root: str | None) -> ElfFile | None:
    identifier = elf.build_id
    if identifier is None or len(identifier) < 4:
        return None
    found = _open(f"{DEBUG_FOLDER}/.build-id/{identifier[:2]}/{identifier[2:]}.debug", root)
    return found if found is not None and found.build_id == identifier else None


def _by_link(elf: ElfFile, path: str, root: str | None) -> ElfFile | None:
    section = elf.section(".gnu_debuglink")
    raw = elf.read_section(section) if section is not None and section.size <= 4096 else b""
    name = raw.partition(b"\0")[0]
    checksum = raw[len(name) + 4 & ~3 :][:4]
    if len(checksum) < 4 or b"/" in name or name in (b"", b".", b".."):
        return None
    for candidate in _linked(path, name.decode("utf-8", "surrogateescape")):
        found = _open(candidate, root)
        if (
            found is not None
            and found.identity != elf.identity
            and found.checksum() == int.from_bytes(checksum, "little")
        ):
            return found
    return None


def _linked(path: str, name: str) -> Iterator[str]:
    folder = posixpath.dirname(path)
    yield f"{folder}/{name}"
    yield f"{folder}/.debug/{name}"
    yield f"{DEBUG_FOLDER}{folder}/{name}"


def _open(path: str, root: str | None) -> ElfFile | None:
    try:
        found = ElfFile.open(path, root)
    except TargetError:
        return None
    return found if _has_symbols(found) else None


def _has_symbols(elf: ElfFile) -> bool:
    return any(section.type == SHT_SYMTAB for section in elf.sections)


def _expanded(elf: ElfFile) -> ElfFile | None:
    section = elf.section(".gnu_debugdata")
    raw = elf.read_section(section) if section is not None else b""
    if not raw:
        return None
    try:
        data = lzma.LZMADecompressor(memlimit=_MOST_MEMORY).decompress(raw, _LARGEST_EXPANDED)
        found = ElfFile.from_bytes(data, elf.name)
    except (lzma.LZMAError, EOFError, TargetError):
        return None
    return found if _has_symbols(found) else None
