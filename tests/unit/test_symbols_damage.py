"""Damaged and hostile files: whatever the bytes, no crash, no hang, no memory without bounds."""

from __future__ import annotations

import gc
import resource
import struct
from collections.abc import Iterator
from pathlib import Path
from weakref import WeakKeyDictionary

import pytest

from fuzz import elf
from fuzz.elf import use_everything
from sidestep.errors import SidestepError
from sidestep.symbols import symbol_table
from sidestep.symbols.elf import ElfFile
from sidestep.symbols.functions import FunctionTable
from sidestep.symbols.link_map import DT_DEBUG, load_order
from sidestep.symbols.modules import Module


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return elf.library(tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return elf.program(tmp_path_factory.mktemp("program"))


@pytest.fixture(autouse=True)
def _bounded_memory() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def test_the_file_itself_is_understood(library: bytes, program: bytes) -> None:
    assert use_everything(library) > 8
    assert use_everything(program) > 4


def test_files_that_are_cut_off(library: bytes) -> None:
    for size in [*range(0, 1500, 7), *range(1500, len(library), 997)]:
        use_everything(library[:size])


def with_patch(data: bytes, section_name: str, offset: int, patch: bytes) -> bytes:
    section = ElfFile.from_bytes(data, "whole").section(section_name)
    assert section is not None
    at = section.offset + offset
    return data[:at] + patch + data[at + len(patch) :]


def test_a_chain_of_version_definitions_that_leads_back(library: bytes) -> None:
    # vd_next of the first definition: to itself, by wrapping around 32 bits, and to very near.
    for following in (0xFFFFFFFF, 1, 2, 20):
        use_everything(with_patch(library, ".gnu.version_d", 16, struct.pack("<I", following)))


def test_hash_tables_that_claim_everything(library: bytes) -> None:
    data = bytearray(library)
    struct.pack_into("<Q", data, 0x28, 0)
    struct.pack_into("<HHH", data, 0x3A, 0, 0, 0)
    for patch in (
        b"\xff" * 16,
        struct.pack("<IIII", 1, 0, 1, 0),
        struct.pack("<IIII", 1 << 20, 1, 1 << 20, 6),
    ):
        use_everything(
            with_patch(library, ".gnu.hash", 0, patch)[:0x28]
            + bytes(data[0x28:0x40])
            + with_patch(library, ".gnu.hash", 0, patch)[0x40:]
        )


def test_symbols_that_cover_everything_and_share_one_name(program: bytes) -> None:
    section = ElfFile.from_bytes(program, "whole").section(".symtab")
    assert section is not None
    whole = ElfFile.from_bytes(program, "whole")
    name = next(
        struct.unpack_from("<I", program, section.offset + index * 24)[0]
        for index in range(section.size // 24)
        if struct.unpack_from("<IB", program, section.offset + index * 24)[1] & 15 == 2
    )
    rows = b"".join(
        struct.pack("<IBBHQQ", name, 0x12, 0, 1, whole.text[0].start + index % 64, (1 << 64) - 1)
        for index in range(section.size // 24)
    )
    assert use_everything(with_patch(program, ".symtab", 0, rows)) > 0


def test_a_large_file_of_nothing_but_functions(program: bytes) -> None:
    """A symbol table of 200,000 entries at one address, with names that overlap."""
    file = ElfFile.from_bytes(program, "whole")
    count = 200_000
    strings = b"\0" + b"_ZN" + b"1a" * 1000 + b"Ev\0"
    rows = b"".join(
        struct.pack("<IBBHQQ", 1 + index % 2000, 0x12, 0, 1, file.text[0].start, 0) for index in range(count)
    )
    symtab, strtab = file.section(".symtab"), file.section(".strtab")
    assert symtab is not None
    assert strtab is not None
    (table,) = struct.unpack_from("<Q", program, 0x28)
    data = bytearray(program) + rows + strings
    for index, section in enumerate(file.sections):
        where = table + index * 64 + 24
        if section is symtab:
            struct.pack_into("<QQ", data, where, len(program), len(rows))
        elif section is strtab:
            struct.pack_into("<QQ", data, where, len(program) + len(rows), len(strings))
    functions = FunctionTable(ElfFile.from_bytes(bytes(data), "large"))
    function = functions.containing(file.text[0].start)
    assert function is not None
    assert len(function.aliases) < 300
    assert functions.named("nothing") == []


def test_tables_of_many_files_together(program: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program can map thousands of files, each with tables as large as they may be."""
    monkeypatch.setattr(symbol_table, "_MOST_HELD", 1 << 20)
    monkeypatch.setattr(symbol_table, "_held", WeakKeyDictionary())
    large = bytearray(program) + bytes(1 << 19)
    file = ElfFile.from_bytes(program, "whole")
    (headers,) = struct.unpack_from("<Q", program, 0x28)
    strtab = file.section(".strtab")
    assert strtab is not None
    where = headers + file.sections.index(strtab) * 64 + 32
    struct.pack_into("<Q", large, where, len(large) - strtab.offset)
    tables = [FunctionTable(ElfFile.from_bytes(bytes(large), f"file {number}")) for number in range(20)]
    found = [bool(table.named("main")) for table in tables]
    assert 1 <= found.count(True) <= 3
    assert found[0]
    del tables
    gc.collect()
    assert FunctionTable(ElfFile.from_bytes(bytes(large), "later")).named("main")


class Words:
    """A target's memory of 8-byte words that stand at addresses; zeros elsewhere."""

    def __init__(self, words: dict[int, int]) -> None:
        self.words = words
        self.reads = 0

    def read(self, address: int, size: int) -> bytes:
        self.reads += 1
        return b"".join(struct.pack("<Q", self.words.get(at, 0)) for at in range(address, address + size, 8))[
            :size
        ]


@pytest.mark.parametrize("shape", ["itself", "pair", "namespaces", "endless", "wild"])
def test_a_loaders_list_that_leads_in_circles(program: bytes, shape: str) -> None:
    file = ElfFile.from_bytes(program, "program")
    module = Module("/program", "", file, 0x500000000000, [])
    section = file.dynamic_section
    assert section is not None
    index = list(file.dynamic).index(DT_DEBUG)
    debug, link = 0x700000000000, 0x700000001000
    words = {module.bias + section.start + index * 16 + 8: debug, debug: 2, debug + 8: link}
    if shape == "itself":
        words[link + 24] = link
    elif shape == "pair":
        words |= {link + 24: link + 64, link + 64 + 24: link}
    elif shape == "namespaces":
        words |= {debug + 40: debug, link + 24: link}
    elif shape == "endless":
        words |= {link + 32 * n + 24: link + 32 * (n + 1) for n in range(40000)}
    else:
        words |= {link + 24: (1 << 64) - 8}
    memory = Words(words)
    found = load_order(module, [module], memory.read)
    assert 1 <= len(found) <= 1 << 14
    assert memory.reads < 1 << 15


def test_memory_that_cannot_be_read() -> None:
    def fails(address: int, size: int) -> bytes:
        raise OSError(14, "no memory")

    def short(address: int, size: int) -> bytes:
        return b"\x7fELF"[:size]

    for read in (fails, short):
        with pytest.raises(SidestepError):
            ElfFile.from_memory(read, 0x400000, "gone")
