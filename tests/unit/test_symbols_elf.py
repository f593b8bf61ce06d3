"""ELF headers, segments, sections and content, compared with readelf."""

from __future__ import annotations

import os
import re
import struct
import time
from pathlib import Path

import pytest

from harness.samples import Samples, output_of
from sidestep import errors
from sidestep.errors import TargetError
from sidestep.symbols.elf import PF_X, ElfFile

PROGRAM = """
#include <stdio.h>
char zeros[100000];
int value = 7;
static int first(void) { return 1; }
static int second(void) { return 2; }
int (*table[])(void) = { first, second };
int main(int argc, char **argv) { return puts(argv[0]) + table[argc & 1]() + value + zeros[argc]; }
"""
KINDS = {
    "pie": ("-O1",),
    "no-pie": ("-O1", "-no-pie", "-fno-pie"),
    "static": ("-O1", "-static"),
    "static-pie": ("-O1", "-static-pie"),
    "packed": ("-O1", "-Wl,-z,pack-relative-relocs"),
}


@pytest.fixture(params=KINDS)
def program(request: pytest.FixtureRequest, samples: Samples) -> Path:
    return samples(PROGRAM, *KINDS[request.param])


def test_segments_are_those_of_readelf(program: Path) -> None:
    listed = re.findall(
        r"^  LOAD\s+0x(\w+) 0x(\w+) 0x\w+ 0x(\w+) 0x(\w+) ([R ][W ][E ])",
        output_of("readelf", "-lW", program),
        re.M,
    )
    elf = ElfFile.open(str(program))
    assert [
        (f"{load.offset:06x}", f"{load.address:016x}", f"{load.file_size:06x}", f"{load.memory_size:06x}")
        for load in elf.loads
    ] == [row[:4] for row in listed]
    assert [bool(load.flags & PF_X) for load in elf.loads] == [row[4][2] == "E" for row in listed]


def test_sections_are_those_of_readelf(program: Path) -> None:
    listed = re.findall(
        r"^  \[ *\d+\] (\S*) +[A-Z_]+ +(\w{16}) (\w{6}) (\w{6}) ", output_of("readelf", "-SW", program), re.M
    )
    elf = ElfFile.open(str(program))
    sections = [
        (section.name, f"{section.address:016x}", f"{section.offset:06x}", f"{section.size:06x}")
        for section in elf.sections
        if section.type
    ]
    assert [row for row in sections if row[0]] == [row for row in listed if row[0] and row[1] != "NULL"]


def test_header_fields(samples: Samples) -> None:
    pie = ElfFile.open(str(samples(PROGRAM, *KINDS["pie"])))
    fixed = ElfFile.open(str(samples(PROGRAM, *KINDS["no-pie"])))
    static = ElfFile.open(str(samples(PROGRAM, *KINDS["static"])))
    assert (pie.type, pie.is_pic, pie.bits, pie.machine) == ("dyn", True, 64, 62)
    assert (fixed.type, fixed.is_pic) == ("exec", False)
    assert pie.interpreter == "/lib64/ld-linux-x86-64.so.2"
    assert static.interpreter is None
    entry = re.search(r"Entry point address:\s+0x(\w+)", output_of("readelf", "-h", samples(PROGRAM, "-O1")))
    assert entry is not None
    assert pie.entry == int(entry[1], 16)


def test_build_id_and_soname(samples: Samples) -> None:
    path = samples(PROGRAM, "-O1", "-shared", "-fPIC", "-Wl,--build-id=0x0123456789abcdef,-soname,libx.so.3")
    elf = ElfFile.open(str(path))
    assert elf.build_id == "0123456789abcdef"
    assert elf.soname == "libx.so.3"
    assert ElfFile.open(str(samples(PROGRAM, "-O1", "-Wl,--build-id=none"))).build_id is None


def test_read_gives_file_content_by_address_and_zeros_behind_it(program: Path) -> None:
    elf = ElfFile.open(str(program))
    data = program.read_bytes()
    for load in elf.loads:
        assert elf.read(load.address, load.file_size) == data[load.offset : load.offset + load.file_size]
    bss = elf.loads[-1]
    end = bss.address + bss.memory_size
    assert bss.memory_size > bss.file_size + 100000
    assert elf.read(bss.address + bss.file_size, 50) == bytes(50)
    assert elf.read(end - 4, 100) == bytes(4)
    assert elf.read(end + (1 << 30), 4) == b""
    assert elf.read(elf.text[0].start, 0) == b""


def test_text_is_what_the_file_backs(program: Path) -> None:
    elf = ElfFile.open(str(program))
    section = elf.section(".text")
    assert section is not None
    assert elf.in_text(section.address)
    assert not elf.in_text(elf.text[-1].end)
    assert all(text.size for text in elf.text)


@pytest.mark.parametrize("kind", ["pie", "static-pie", "packed"])
def test_relative_targets_are_the_code_addresses_that_readelf_lists(samples: Samples, kind: str) -> None:
    path = samples(PROGRAM, *KINDS[kind])
    elf = ElfFile.open(str(path))
    text = output_of("readelf", "-rW", path)
    targets = {int(addend, 16) for addend in re.findall(r"R_X86_64_I?RELATIV\w* +([0-9a-f]+)", text)}
    if kind == "packed":
        packed = text[text.index(".relr.dyn") :]
        places = [int(place, 16) for place in re.findall(r"^([0-9a-f]{16})", packed, re.M)]
        assert places
        targets |= {int.from_bytes(elf.read(place, 8), "little") for place in places}
    expected = sorted(target for target in targets if elf.in_text(target))
    assert list(elf.relative_targets) == expected
    names = {
        line.split()[2]: int(line.split()[0], 16)
        for line in output_of("nm", path).splitlines()
        if " t " in line
    }
    assert {names["first"], names["second"]} <= set(expected)


def test_program_at_a_fixed_address_has_no_relative_targets(samples: Samples) -> None:
    assert list(ElfFile.open(str(samples(PROGRAM, *KINDS["no-pie"]))).relative_targets) == []


@pytest.mark.parametrize(
    "content",
    [b"", b"#!/bin/sh\n", b"\x7fELF", b"\x7fELF" + bytes(60), b"MZ" + bytes(200)],
    ids=["empty", "script", "short", "zeros", "windows"],
)
def test_what_is_no_elf_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(TargetError) as caught:
        ElfFile.open(str(path))
    assert caught.value.reason in (errors.ELF_MALFORMED, errors.NOT_64_BIT)
    assert str(path) in str(caught.value)


def test_paths_that_are_no_regular_files_are_refused_without_waiting(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    started = time.monotonic()
    for path in (tmp_path, fifo, tmp_path / "missing", Path("/dev/zero"), Path("a\0b")):
        with pytest.raises(TargetError) as caught:
            ElfFile.open(str(path))
        assert caught.value.reason is errors.ELF_MALFORMED
    assert time.monotonic() - started < 20


@pytest.mark.parametrize(
    ("offset", "value", "word"),
    [(4, 1, "x32"), (5, 2, "machine"), (18, 183, "aarch64"), (18, 3, "i386")],
)
def test_other_machines_are_refused_by_name(samples: Samples, offset: int, value: int, word: str) -> None:
    data = bytearray(samples(PROGRAM, "-O1").read_bytes())
    data[offset] = value
    with pytest.raises(TargetError, match=word) as caught:
        ElfFile.from_bytes(bytes(data), "other")
    assert caught.value.reason is errors.NOT_64_BIT


def test_object_files_are_refused(samples: Samples) -> None:
    with pytest.raises(TargetError, match="neither an executable nor a shared object"):
        ElfFile.open(str(samples(PROGRAM, "-c")))


def test_without_section_headers(samples: Samples) -> None:
    data = bytearray(samples(PROGRAM, "-O1").read_bytes())
    struct.pack_into("<Q", data, 0x28, 0)
    struct.pack_into("<HHH", data, 0x3A, 0, 0, 0)
    elf = ElfFile.from_bytes(bytes(data), "bare")
    assert elf.sections == []
    assert elf.text
    assert elf.build_id
    assert elf.dynamic


def test_many_files_share_few_descriptors(samples: Samples, tmp_path: Path) -> None:
    data = samples(PROGRAM, "-O1").read_bytes()
    before = len(os.listdir("/proc/self/fd"))
    files = []
    for number in range(300):
        path = tmp_path / str(number)
        path.write_bytes(data)
        files.append(ElfFile.open(str(path)))
    assert len(os.listdir("/proc/self/fd")) <= before + 140
    text = files[0].text[0]
    assert all(file.read(text.start, 64) == files[-1].read(text.start, 64) != b"" for file in files)
    # A file that was replaced meanwhile reads as empty, not as the other file.
    replaced, kept = files[0], files[1:]
    (tmp_path / "new").write_bytes(bytes(len(data)))
    (tmp_path / "new").rename(tmp_path / "0")
    for file in kept:
        file.read(text.start, 1)
    assert replaced.read(text.start, 64) == b""
    del files, kept, file, replaced
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_a_file_that_was_cut_off_reads_short(samples: Samples) -> None:
    data = samples(PROGRAM, "-O1").read_bytes()
    whole = ElfFile.from_bytes(data, "whole")
    text = whole.text[0]
    cut = ElfFile.from_bytes(data[: whole.loads[1].offset + 16], "cut")
    assert cut.read(text.start, 100) == whole.read(text.start, 16)
    assert cut.sections == []
