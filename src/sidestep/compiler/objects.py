"""Object files of one function: its code, and where the addresses of symbols go."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
RELOCATION = struct.Struct("<QQq")
SHT_PROGBITS, SHT_SYMTAB, SHT_RELA = 1, 2, 4
SHF_ALLOC, SHF_EXECUTABLE = 2, 4
R_X86_64_64 = 1
ADDRESS_SIZE = 8


class ObjectError(ValueError):
    """The object file is not what is expected of the compiler: an internal error."""


class Reference(NamedTuple):
    """Eight bytes of the code that are a symbol's address plus `addend`; of the code's own start if `symbol`
    is empty."""

    offset: int
    symbol: str
    addend: int


class Code(NamedTuple):
    """Position-independent but for `references`. The handler has `size` bytes from `entry` on; behind it may
    be functions that it calls."""

    code: bytes
    entry: int
    size: int
    references: tuple[Reference, ...]

    def placed(self, address: int, symbols: Mapping[str, int]) -> bytes:
        """The code for an address, with all addresses filled in."""
        code = bytearray(self.code)
        for offset, symbol, addend in self.references:
            value = (symbols[symbol] if symbol else address) + addend & (1 << 64) - 1
            code[offset : offset + 8] = value.to_bytes(8, "little")
        return bytes(code)


class _Section(NamedTuple):
    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


def read_object(data: bytes, entry: str = "handler") -> Code:
    """The one code section of an object file. Raises ObjectError for anything that cannot be placed."""
    try:
        code = _read(data, entry)
    except ObjectError:
        raise
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise ObjectError("a damaged object file") from error
    inside = all(0 <= each.offset <= len(code.code) - ADDRESS_SIZE for each in code.references)
    if not inside or code.entry + code.size > len(code.code):
        raise ObjectError("a damaged object file")
    return code


def _read(data: bytes, entry: str) -> Code:
    header = HEADER.unpack_from(data)
    offset, size, count = header[6], header[11], header[12]
    sections = [_Section(*SECTION.unpack_from(data, offset + i * size)) for i in range(count)]
    text = [i for i, s in enumerate(sections) if s.flags & SHF_EXECUTABLE and s.size]
    if len(text) != 1:
        raise ObjectError(f"{len(text)} sections with code")
    others = [s for s in sections if s.flags & SHF_ALLOC and s.type == SHT_PROGBITS and s.size]
    if len(others) > 1:
        raise ObjectError("the code has data beside it")
    code = sections[text[0]]
    (symbols,) = (s for s in sections if s.type == SHT_SYMTAB)
    names = sections[symbols.link]

    def name(number: int) -> tuple[str, int, int, int]:
        found = SYMBOL.unpack_from(data, symbols.offset + number * SYMBOL.size)
        start = names.offset + found[0]
        return data[start : data.index(b"\0", start)].decode(), found[3], found[4], found[5]

    references = []
    for section in sections:
        if section.type == SHT_RELA and section.info == text[0]:
            for at in range(section.offset, section.offset + section.size, RELOCATION.size):
                place, info, addend = RELOCATION.unpack_from(data, at)
                symbol, where, value, _ = name(info >> 32)
                if info & 0xFFFFFFFF != R_X86_64_64 or where not in (0, text[0]):
                    raise ObjectError(f"a reference of type {info & 0xFFFFFFFF} to {symbol or 'a section'}")
                own = where == text[0]
                references.append(Reference(place, "" if own else symbol, addend + value if own else addend))
    entries = [name(i) for i in range(symbols.size // SYMBOL.size)]
    ((start, length),) = (
        (value, length) for label, where, value, length in entries if label == entry and where == text[0]
    )
    return Code(data[code.offset : code.offset + code.size], start, length, tuple(references))
