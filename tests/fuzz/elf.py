"""ELF files to mutate, and a use of everything that is read from one."""

from __future__ import annotations

import lzma
import struct
import subprocess
import zlib
from pathlib import Path

from fuzz.mutation import Seed
from sidestep.errors import TargetError
from sidestep.safety.context import ModuleContext
from sidestep.safety.verdict import verdict
from sidestep.symbols.elf import ElfFile
from sidestep.symbols.link_map import is_loaded, load_order
from sidestep.symbols.modules import Module
from sidestep.symbols.relocations import import_slots, indirect_slots
from sidestep.symbols.resolve import Symbolizer
from sidestep.symbols.separate import find_symbols
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
int pick(int a, int b) {
    switch (a) { case 0: b++; case 1: b *= 3; case 2: b ^= 5; break; case 3: return b - 1; case 4: b += a;
                 case 5: b--; case 6: b <<= 1; case 7: return b; }
    return b + a;
}
"""
VERSIONS = "V1 { global: both; }; V2 { global: both; _Z*; chosen; value; } V1;"
LIBRARY = ("-O1", "-shared", "-fPIC", "-Wl,-z,pack-relative-relocs", "-Wl,--hash-style=both")
PROGRAM = "int f(int a) { return a; } int main(int a, char **b) { (void)b; return f(a); }"

SYMBOLS = (".dynsym", ".dynstr", ".gnu.hash", ".gnu.version", ".hash", ".symtab", ".strtab")
FRAMES = (".eh_frame", ".gcc_except")
RELOCATIONS = (".rela", ".relr", ".dynamic")
NOTES = (".note",)
CODE = (".text", ".rodata", ".plt", ".data", ".init_array")
TABLES = SYMBOLS + FRAMES + RELOCATIONS + NOTES


def library(folder: Path) -> bytes:
    script = folder / "versions"
    script.write_text(VERSIONS)
    return compiled(folder, SOURCE, "g++", ".cc", *LIBRARY, f"-Wl,--version-script={script}")


def program(folder: Path) -> bytes:
    return compiled(folder, PROGRAM, "gcc", ".c", "-O1")


def compiled(folder: Path, source: str, compiler: str, suffix: str, *flags: str) -> bytes:
    text, target = folder / f"sample{suffix}", folder / "sample"
    text.write_text(source)
    subprocess.run([compiler, "-w", *flags, text, "-o", target], check=True, timeout=120)
    return target.read_bytes()


def headers_of(data: bytes) -> tuple[range, ...]:
    elf = ElfFile.from_bytes(data, "whole")
    return (range(64 + 56 * len(elf.segments)), range(len(data) - 64 * len(elf.sections), len(data)))


def seed(data: bytes, names: tuple[str, ...]) -> Seed:
    """Changed in the sections whose names begin so; without names, in the headers."""
    sections = [
        range(section.offset, section.offset + section.size)
        for section in ElfFile.from_bytes(data, "whole").sections
        if names and section.name.startswith(names) and section.size and section.type != 8
    ]
    return Seed(data, tuple(sections) or headers_of(data))


def use(data: bytes) -> bool:
    return use_everything(data) >= 0


def use_everything(data: bytes) -> int:
    """Calls what reads tables. Returns how many functions were found; -1 for a file that was refused."""
    try:
        elf = ElfFile.from_bytes(data, "damaged")
    except TargetError:
        return -1
    elf.find_symbols = lambda elf: find_symbols(elf, "/nowhere/damaged", "/proc/self/task")
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
    for text in (elf.interpreter, elf.soname, elf.build_id):
        assert text is None or text.isprintable()
    pads, _ = table.frames.all_landing_pads
    assert list(pads) == sorted(pads)
    find_data(elf, "value")
    indirect_slots(elf)
    import_slots(elf, frozenset({"malloc", "strlen"}))
    Symbolizer([module]).name(0x7F0000001000)
    list(table.all())
    return len(functions)


def use_code(data: bytes) -> bool:
    """Every verdict about its first functions is an answer."""
    try:
        elf = ElfFile.from_bytes(data, "damaged")
    except TargetError:
        return False
    context = ModuleContext(elf, Module("/damaged", "", elf).functions, name="damaged")
    for start in list(context.functions.starts)[:12]:
        for offset in (0, 1, 4, 9):
            str(verdict(context, start + offset))
    return True


def stripped_with(data: bytes, section: str, content: bytes, folder: Path) -> bytes:
    """A copy without its symbol table and with a section of that content."""
    whole, added, target = folder / "whole", folder / "added", folder / "packed"
    whole.write_bytes(data)
    added.write_bytes(content)
    words = ["objcopy", "--strip-all", f"--add-section={section}={added}", whole, target]
    subprocess.run(words, check=True, timeout=60)
    return target.read_bytes()


def compressed_symbols(folder: Path) -> bytes:
    data = program(folder)
    return stripped_with(data, ".gnu_debugdata", lzma.compress(data), folder)


def linked_symbols(folder: Path) -> bytes:
    data = program(folder)
    link = b"sample.debug\0\0\0\0" + struct.pack("<I", zlib.crc32(data))
    return stripped_with(data, ".gnu_debuglink", link, folder)


def inner_symbols(folder: Path) -> bytes:
    """The file that is inside of .gnu_debugdata."""
    return program(folder)


OUTER: list[bytes] = []


def use_inner(data: bytes) -> bool:
    """As what .gnu_debugdata holds: mutated before it is compressed, so that the mutation arrives."""
    elf = ElfFile.from_bytes(OUTER[0], "outer")
    try:
        inner = ElfFile.from_bytes(data, "inner")
    except TargetError:
        return False
    elf.find_symbols = lambda _: inner
    functions = Module("/outer", "", elf).functions
    for function in functions.matching("*")[:50]:
        assert elf.in_text(function.start)
        assert function.name.isprintable()
    list(functions.all())
    find_data(elf, "value")
    return True


BIAS = 0x7F0000000000
LINKS = BIAS + (1 << 20)


def loader_list(folder: Path) -> bytes:
    """r_debug, and eight link maps behind it, each 64 bytes."""
    words = [2, LINKS + 64, 0, 0, 0, 0, 0, 0]
    for number in range(1, 9):
        following = LINKS + 64 * (number + 1) if number < 8 else 0
        words += [BIAS + 4096 * number, 0, BIAS + 64, following, 0, 0, 0, 0]
    return struct.pack("<72Q", *words)


def use_loader_list(data: bytes) -> bool:
    elf = ElfFile.from_bytes(OUTER[0], "program")
    module = Module("/program", "", elf, BIAS, [])

    def read(address: int, size: int) -> bytes:
        if LINKS <= address < LINKS + len(data):
            return data[address - LINKS : address - LINKS + size]
        return (struct.pack("<Q", LINKS) * (size // 8 + 1))[:size] if BIAS <= address < LINKS else b""

    found = load_order(module, [module], read)
    is_loaded(module, read)
    assert len(found) <= 1 << 14
    return bool(found)
