"""Restartable sequences (rseq) of a file: code that must not run anywhere else.

Descriptors are `struct rseq_cs` of the kernel's <linux/rseq.h> (version, flags, start_ip,
post_commit_offset, abort_ip: 32 bytes), which by convention lie in the section `__rseq_cs`. The four bytes
before the abort address are a signature that the kernel checks.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Protocol

from sidestep.address import Range

_DESCRIPTOR = struct.Struct("<IIQQQ")
_RELOCATION = struct.Struct("<QQq")
_SIGNATURE_SIZE = 4
_MOST_BYTES = 1 << 20
_DT_RELA, _DT_RELASZ, _R_RELATIVE = 7, 8, 8


class Section(Protocol):
    """A section header."""

    @property
    def address(self) -> int: ...
    @property
    def size(self) -> int: ...


class SectionedFile(Protocol):
    """What is needed of symbols.elf.ElfFile."""

    @property
    def dynamic(self) -> Mapping[int, int]: ...
    def dynamic_address(self, tag: int, /) -> int | None: ...
    def section(self, name: str, /) -> Section | None: ...
    def read(self, address: int, size: int, /) -> bytes: ...


def restartable_sequences(file: SectionedFile) -> list[Range]:
    """The code ranges of all sequences and the signatures of their abort handlers, ascending, in file
    addresses."""
    section = file.section("__rseq_cs")
    if section is None:
        return []
    content = bytearray(file.read(section.address, min(section.size, _MOST_BYTES)))
    _apply_relocations(file, section.address, content)
    found = []
    for _, _, start, length, abort in _DESCRIPTOR.iter_unpack(content[: len(content) // 32 * 32]):
        if 0 < length < 1 << 20 and start:
            found.append(Range(start, start + length))
        if abort >= _SIGNATURE_SIZE:
            found.append(Range(abort - _SIGNATURE_SIZE, abort + 1))
    return sorted(found)


def _apply_relocations(file: SectionedFile, address: int, content: bytearray) -> None:
    """Put the addends of relative relocations (psABI, table 4.10) where the loader puts them."""
    table = file.dynamic_address(_DT_RELA)
    if table is None:
        return
    raw = file.read(table, min(file.dynamic.get(_DT_RELASZ, 0), 1 << 27))
    for where, info, addend in _RELOCATION.iter_unpack(
        raw[: len(raw) // _RELOCATION.size * _RELOCATION.size]
    ):
        offset = where - address
        if info & 0xFFFFFFFF == _R_RELATIVE and 0 <= offset <= len(content) - 8:
            content[offset : offset + 8] = (addend & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "little")
