"""Modules made of machine code that is written out with its assembly, for tests of verdicts.

    55            # push %rbp
    48 89 e5      # mov %rsp,%rbp

A line may start with `ADDRESS:` to say where its bytes are, which is checked: branches in hand-made code
are wrong soon.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sidestep.address import Range
from sidestep.safety.context import Circumstances, ModuleContext

TEXT = 0x1000
DATA = 0x4000


def code(listing: str, start: int = TEXT) -> bytes:
    """The bytes of a listing that starts at address `start`."""
    content = b""
    for line in listing.splitlines():
        digits = line.partition("#")[0].strip()
        address, colon, rest = digits.partition(":")
        if colon:
            assert int(address, 16) == start + len(content), f"{line.strip()} is at {start + len(content):#x}"
            digits = rest
        content += bytes.fromhex(digits)
    return content


@dataclass(frozen=True, slots=True)
class Segment:
    address: int
    file_size: int


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    start: int
    end: int


@dataclass
class File:
    """An ELF file that has code, and data behind it."""

    contents: dict[int, bytes]
    is_pic: bool = True
    relative_targets: Sequence[int] = ()
    build_id: str | None = None
    dynamic: Mapping[int, int] = field(default_factory=dict)

    @property
    def text(self) -> Sequence[Range]:
        return [Range(TEXT, TEXT + len(self.contents[TEXT]))]

    @property
    def loads(self) -> Sequence[Segment]:
        return [Segment(start, len(content)) for start, content in self.contents.items()]

    def read(self, address: int, size: int, /) -> bytes:
        for start, content in self.contents.items():
            if start <= address < start + len(content):
                return content[address - start : address - start + size]
        return b""

    def dynamic_address(self, tag: int, /) -> int | None:
        return None

    def section(self, name: str, /) -> None:
        return None


@dataclass
class Unwind:
    """`pads`: the landing pads of the function at an address; None: its table is damaged."""

    starts: Sequence[int]
    pads: Mapping[int, list[int] | None] = field(default_factory=dict)

    def landing_pads(self, start: int, /) -> list[int] | None:
        return self.pads.get(start, [])


@dataclass
class Table:
    """The functions of a file, ascending and apart."""

    parts: Sequence[Part]
    frames: Unwind

    @property
    def starts(self) -> Sequence[int]:
        return [part.start for part in self.parts]

    def at(self, start: int, /) -> Part | None:
        return next((part for part in self.parts if part.start == start), None)

    def containing(self, address: int, /) -> Part | None:
        index = bisect_right(self.starts, address) - 1
        return self.parts[index] if index >= 0 and address < self.parts[index].end else None


def module(
    listings: Mapping[str, str],
    *,
    gap: str = "",
    tables: Mapping[int, Sequence[int]] | None = None,
    pads: Mapping[int, list[int] | None] | None = None,
    is_pic: bool = True,
    relative_targets: Sequence[int] = (),
    probes: int = 1,
) -> ModuleContext:
    """One function for each name and listing, `gap` behind each. `tables`: numbers of 32 bits at addresses in
    the data, which has 256 zero bytes otherwise."""
    content, parts = b"", []
    for name, listing in listings.items():
        start = TEXT + len(content)
        body = code(listing, start)
        parts.append(Part(name, start, start + len(body)))
        content += body + code(gap)
    data = bytearray(256)
    for address, numbers in (tables or {}).items():
        struct.pack_into(f"<{len(numbers)}i", data, address - DATA, *numbers)
    file = File({TEXT: content, DATA: bytes(data)}, is_pic, relative_targets)
    functions = Table(parts, Unwind([part.start for part in parts], pads or {}))
    return ModuleContext(file, functions, name="module", batch=Circumstances(probes=probes))
