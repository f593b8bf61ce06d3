"""Unwind entries and landing pads, compared with readelf and with what the compiler wrote."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.samples import Samples, frame_entries, output_of
from sidestep.symbols.eh_frame import FdeTable
from sidestep.symbols.elf import ElfFile

THROWING = """
#include <stdexcept>
#include <string>
#define KEPT __attribute__((noinline, noipa))
KEPT int risky(int a) { if (a > 3) throw std::runtime_error("x"); return a; }
KEPT int guarded(int a) {
    std::string text(a, 'x');
    try { return risky(a) + (int)text.size(); }
    catch (std::runtime_error const &error) { return -1; }
    catch (int value) { return value; }
}
KEPT int harmless(int a) { return a + 1; }
int main(int argc, char **argv) { return guarded(argc) + guarded(argc * 7) + harmless(**argv); }
"""


def table_of(path: Path) -> FdeTable:
    return FdeTable(ElfFile.open(str(path)))


@pytest.mark.parametrize(
    "flags", [("-O2",), ("-O2", "-static"), ("-O0", "-no-pie"), ("-O2", "-mcmodel=large")]
)
def test_entries_are_those_of_readelf(samples: Samples, flags: tuple[str, ...]) -> None:
    path = samples(THROWING, *flags, suffix=".cc")
    table = table_of(path)
    expected = frame_entries(path)
    assert len(table) == len(expected)
    for start, end in expected.items():
        entry = table.at(start)
        assert entry is not None
        assert (entry.start, entry.end) == (start, end)
        assert table.containing(end - 1) == entry
        assert table.at(start + 1) is None


def test_entries_of_the_c_library_are_those_of_readelf() -> None:
    path = Path("/lib/x86_64-linux-gnu/libc.so.6")
    if not path.exists():
        pytest.skip("no libc.so.6 here")
    table = table_of(path)
    expected = frame_entries(path)
    assert list(table.starts) == sorted(expected)
    assert all((entry := table.at(start)) and entry.end == expected[start] for start in table.starts)


@pytest.mark.parametrize("flags", [("-O2",), ("-O0",), ("-O2", "-no-pie", "-fno-pie"), ("-O2", "-static")])
def test_landing_pads_are_the_labels_that_the_compiler_wrote(
    samples: Samples, flags: tuple[str, ...]
) -> None:
    text = samples(THROWING, *flags, "-S", suffix=".cc").read_text()
    tables = re.findall(r"\.uleb128 \.LEHB\d+-\.LFB(\d+)\n(?:.*\n)\s+\.uleb128 (\.L\d+)-\.LFB", text)
    assert tables
    # Equates give the compiler's own labels names that nm shows.
    marks = "".join(
        f"\n.globl pad_{function}_{index}\n.set pad_{function}_{index}, {label}\n"
        for index, (function, label) in enumerate(tables)
    )
    linked = samples(text + marks, *[flag for flag in flags if flag != "-fno-pie"], suffix=".s")
    pads: dict[str, set[int]] = {}
    for line in output_of("nm", linked).splitlines():
        match = re.match(r"([0-9a-f]+) . pad_(\d+)_", line)
        if match:
            pads.setdefault(match[2], set()).add(int(match[1], 16))
    table = table_of(linked)
    starts = {
        symbol.split()[2]: int(symbol.split()[0], 16)
        for symbol in output_of("nm", linked).splitlines()
        if " T " in symbol
    }
    guarded = starts["_Z7guardedi"]
    ours = next(found for found in pads.values() if any(guarded <= pad for pad in found))
    found = table.landing_pads(guarded)
    assert found is not None
    parts = {pad for start in table.starts for pad in table.landing_pads(start) or []}
    assert set(found) & ours
    assert ours <= parts
    assert set().union(*pads.values()) <= set(table.all_landing_pads[0])
    assert table.all_landing_pads[1] == []
    assert table.landing_pads(starts["_Z8harmlessi"]) == []
    assert table.landing_pads(guarded + 1) == []


def test_damaged_tables_are_unknown_not_empty(samples: Samples) -> None:
    path = samples(THROWING, "-O2", suffix=".cc")
    elf = ElfFile.open(str(path))
    section = elf.section(".gcc_except_table")
    assert section is not None
    data = bytearray(path.read_bytes())
    data[section.offset : section.offset + section.size] = b"\xff\x80" * (section.size // 2) + b"\xff" * (
        section.size % 2
    )
    damaged = FdeTable(ElfFile.from_bytes(bytes(data), "damaged"))
    with_tables = [start for start in damaged.starts if (entry := damaged.at(start)) and entry.lsda]
    assert with_tables
    assert [damaged.landing_pads(start) for start in with_tables] == [None] * len(with_tables)
    assert [entry.start for entry in damaged.all_landing_pads[1]] == with_tables


def test_no_table(samples: Samples) -> None:
    path = samples(
        "int f(int a) { return a; }", "-shared", "-fPIC", "-nostdlib", "-fno-asynchronous-unwind-tables"
    )
    table = table_of(path)
    assert len(table) == 0
    assert table.containing(0x1000) is None
    assert table.landing_pads(0x1000) == []
