"""Damaged and hostile files: whatever the bytes, no crash, no hang, no memory without bounds."""

from __future__ import annotations

import random
import resource
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.samples import Samples
from sidestep.errors import SidestepError, TargetError
from sidestep.symbols.elf import ElfFile
from sidestep.symbols.functions import FunctionTable
from sidestep.symbols.link_map import DT_DEBUG, load_order
from sidestep.symbols.modules import Module
from sidestep.symbols.relocations import import_slots, indirect_slots
from sidestep.symbols.resolve import Symbolizer
from sidestep.symbols.symbol_table import find_data

SOURCE = """
#include <string.h>
#include <stdlib.h>
int value = 3; static int plain(int a) { return a; }
extern "C" {
static int (*choose(void))(int) { return plain; }
int chosen(int) __attribute__((ifunc("choose")));
int old(void) { return 1; } int renewed(void) { return 2; }
__asm__(".symver old,both@V1"); __asm__(".symver renewed,both@@V2");
}
namespace ns { struct T { virtual int act(int a) { return a; } virtual ~T() {} }; T one; }
int (*table[])(int) = { plain, chosen };
int guarded(int a) {
    try { if (a) throw a; } catch (int b) { return b; }
    return (int)strlen((char *)malloc(a));
}
"""
VERSIONS = "V1 { global: both; }; V2 { global: both; _Z*; chosen; value; } V1;"
MUTATIONS = 2000


@pytest.fixture(scope="module")
def library(samples: Samples) -> bytes:
    flags = ("-O1", "-shared", "-fPIC", "-Wl,-z,pack-relative-relocs", "-Wl,--hash-style=both")
    return samples(SOURCE, *flags, suffix=".cc", version_script=VERSIONS).read_bytes()


@pytest.fixture(scope="module")
def program(samples: Samples) -> bytes:
    return samples(
        "int f(int a) { return a; } int main(int a, char **b) { (void)b; return f(a); }", "-O1"
    ).read_bytes()


@pytest.fixture(autouse=True)
def _bounded_memory() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def use_everything(data: bytes) -> int:
    """Calls what reads tables. Returns how many functions were found; -1 for a file that was refused."""
    try:
        elf = ElfFile.from_bytes(data, "damaged")
    except TargetError:
        return -1
    module = Module("/damaged", "", elf, 0x7F0000000000, [])
    table = module.functions
    functions = table.matching("*") + table.matching("ns::*") + table.matching("sub_*")
    for function in functions[:50]:
        assert function.name.isprintable()
        assert table.containing(function.start) is not None
        assert elf.in_text(function.start)
        assert function.start <= function.end <= max(text.end for text in elf.text)
        table.frames.landing_pads(function.start)
    for name in ("both", "both@V1", "chosen", "ns::T::act", "guarded(int)", "sub_1000"):
        table.named(name)
    table.close_names("bth")
    assert list(table.starts) == sorted(set(table.starts))
    assert all(elf.in_text(address) for address in elf.relative_targets)
    assert [
        name for name in (elf.interpreter, elf.soname, elf.build_id) if name and not name.isprintable()
    ] == []
    pads, _ = table.frames.all_landing_pads
    assert list(pads) == sorted(pads)
    find_data(elf, "value")
    indirect_slots(elf)
    import_slots(elf, frozenset({"malloc", "strlen"}))
    Symbolizer([module]).name(0x7F0000001000)
    list(table.all())
    return len(functions)


def test_the_file_itself_is_understood(library: bytes, program: bytes) -> None:
    assert use_everything(library) > 8
    assert use_everything(program) > 4


def places_of_interest(data: bytes) -> list[range]:
    """The bytes of headers and tables: a change of code shows nothing."""
    elf = ElfFile.from_bytes(data, "whole")
    tables = (
        ".dynsym",
        ".dynstr",
        ".gnu",
        ".hash",
        ".rela",
        ".relr",
        ".eh_frame",
        ".gcc_except",
        ".dynamic",
        ".sym",
        ".str",
        ".note",
    )
    ranges = [range(64 + 56 * len(elf.segments)), range(len(data) - 64 * len(elf.sections), len(data))]
    return ranges + [
        range(section.offset, section.offset + section.size)
        for section in elf.sections
        if section.name.startswith(tables) and section.size
    ]


@pytest.mark.parametrize("kind", ["library", "program"])
def test_mutated_files(kind: str, request: pytest.FixtureRequest) -> None:
    data: bytes = request.getfixturevalue(kind)
    places = places_of_interest(data)
    rng = random.Random(7)
    values = (0, 1, 2, 0x7F, 0x80, 0xFF)
    found = 0
    for _ in range(MUTATIONS):
        changed = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 5, 20))):
            place = rng.choice(places)
            position = rng.choice(place)
            match rng.randrange(4):
                case 0:
                    changed[position] = rng.choice(values)
                case 1:
                    changed[position] ^= 1 << rng.randrange(8)
                case 2:
                    width = rng.choice((2, 4, 8))
                    value = rng.choice(
                        (
                            0,
                            1,
                            (1 << 8 * width) - 1,
                            1 << (8 * width - 1),
                            rng.getrandbits(8 * width),
                            len(data),
                            len(data) - 1,
                        )
                    )
                    position = min(position & -width, len(changed) - width)
                    changed[position : position + width] = value.to_bytes(width, "little")
                case 3:
                    other = rng.choice(rng.choice(places))
                    piece = data[other : other + rng.randrange(1, 64)][: len(data) - position]
                    changed[position : position + len(piece)] = piece
        found = max(found, use_everything(bytes(changed)))
    assert found > 4


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
    elf = ElfFile.from_bytes(program, "whole")
    count = 200_000
    strings = b"\0" + b"_ZN" + b"1a" * 1000 + b"Ev\0"
    rows = b"".join(
        struct.pack("<IBBHQQ", 1 + index % 2000, 0x12, 0, 1, elf.text[0].start, 0) for index in range(count)
    )
    symtab, strtab = elf.section(".symtab"), elf.section(".strtab")
    assert symtab is not None
    assert strtab is not None
    (table,) = struct.unpack_from("<Q", program, 0x28)
    data = bytearray(program) + rows + strings
    for index, section in enumerate(elf.sections):
        where = table + index * 64 + 24
        if section is symtab:
            struct.pack_into("<QQ", data, where, len(program), len(rows))
        elif section is strtab:
            struct.pack_into("<QQ", data, where, len(program) + len(rows), len(strings))
    functions = FunctionTable(ElfFile.from_bytes(bytes(data), "large"))
    function = functions.containing(elf.text[0].start)
    assert function is not None
    assert len(function.aliases) < 300
    assert functions.named("nothing") == []


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
    elf = ElfFile.from_bytes(program, "program")
    module = Module("/program", "", elf, 0x500000000000, [])
    section = elf.dynamic_section
    assert section is not None
    index = list(elf.dynamic).index(DT_DEBUG)
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
