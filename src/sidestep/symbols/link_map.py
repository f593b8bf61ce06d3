"""The dynamic loader's own list of what it has loaded, in load order.

`struct r_debug` and `struct link_map` as in <link.h>; the debugger interface is part of every loader's
contract
(glibc, musl). Version 2 of r_debug adds `r_next`: the namespaces made by dlmopen.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sidestep.address import PAGE
from sidestep.symbols.content import Reader, read_memory
from sidestep.symbols.symbol_table import find_data

if TYPE_CHECKING:
    from sidestep.symbols.modules import Module

DT_DEBUG = 21
_AT_ENTRY, _AT_EXECFN = 9, 31
_MOST_NAMESPACES = 64
_MOST_MODULES = 1 << 14


def entry_point(pid: int) -> int | None:
    """The address where the kernel started the program (AT_ENTRY)."""
    return _auxiliary_values(pid).get(_AT_ENTRY)


def executed_path(pid: int, read: Reader) -> str:
    """The path that the program was executed by, maybe that of a symbolic link (AT_EXECFN); "" if unknown."""
    address = _auxiliary_values(pid).get(_AT_EXECFN, 0)
    raw = read_memory(read, address, PAGE - address % PAGE)
    if b"\0" not in raw:
        raw += read_memory(read, address + len(raw), PAGE)
    return raw.partition(b"\0")[0].decode("utf-8", "backslashreplace")


def _auxiliary_values(pid: int) -> dict[int, int]:
    """What the kernel told the program when it started it, by tag; empty if it cannot be read."""
    try:
        with open(f"/proc/{pid}/auxv", "rb") as file:
            raw = file.read(4096)
    except OSError:
        return {}
    return dict(struct.iter_unpack("<QQ", raw[: len(raw) // 16 * 16]))


def load_order(started: Module | None, modules: Sequence[Module], read: Reader) -> list[int]:
    """The runtime addresses of the dynamic sections, main program first; empty when there is no such list.

    `started` is what the kernel started: the main program, or the loader itself (`ld.so PROGRAM`).
    """
    addresses: list[int] = []
    seen: set[int] = set()
    debug = _debug_structure(started, modules, read)
    for _ in range(_MOST_NAMESPACES):
        raw = read_memory(read, debug, 48) if debug else b""
        if len(raw) < 40:
            break
        version, link = struct.unpack_from("<i4xQ", raw)
        while link and link not in seen and len(seen) < _MOST_MODULES:
            seen.add(link)
            entry = read_memory(read, link, 32)
            if len(entry) < 32:
                break
            _, _, dynamic, link = struct.unpack("<QQQQ", entry)
            addresses.append(dynamic)
        debug = struct.unpack_from("<Q", raw, 40)[0] if version >= 2 and len(raw) == 48 else 0
    return addresses


def is_loaded(started: Module, read: Reader) -> bool:
    """Whether the loader of a new process has mapped and relocated all libraries, and no constructor has run.

    It fills in DT_DEBUG, says RT_ADD in r_state while it works, and RT_CONSISTENT (0) when it is done.
    """
    position = _dynamic_entry(started, DT_DEBUG)
    if position is None:
        return False
    debug = int.from_bytes(read_memory(read, position + 8, 8), "little")
    raw = read_memory(read, debug, 28) if debug else b""
    if len(raw) < 28:
        return False
    version, link, _, state = struct.unpack("<i4xQQi", raw)
    return bool(version >= 1 and link != 0 and state == 0)


def _debug_structure(started: Module | None, modules: Sequence[Module], read: Reader) -> int:
    """The address of r_debug, 0 if it is not there (a static program, or the loader has not run yet)."""
    if started is not None and DT_DEBUG in started.elf.dynamic:
        position = _dynamic_entry(started, DT_DEBUG)
        if position is not None:
            address = int.from_bytes(read_memory(read, position + 8, 8), "little")
            if address:
                return address
    for module in modules:
        if module.name.startswith(("ld-", "ld.", "libc.musl", "ld64")):
            symbol = find_data(module.elf, "_r_debug")
            if symbol is not None:
                return module.bias + symbol.address
    return 0


def _dynamic_entry(module: Module, tag: int) -> int | None:
    """The runtime address of an entry of the dynamic section."""
    section = module.elf.dynamic_section
    if section is None:
        return None
    raw = module.elf.read(section.start, min(section.size, 1 << 16))
    for index, (found, _) in enumerate(struct.iter_unpack("<QQ", raw[: len(raw) // 16 * 16])):
        if found == tag:
            return module.bias + section.start + index * 16
        if found == 0:
            break
    return None
