"""The search over raw bytes for references to code, and the cache of its tables."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest

from sidestep import private_files
from sidestep.address import Range
from sidestep.arch.x86_64.references import (
    CodeBytes,
    Reference,
    ReferenceTable,
    search,
    search_constants,
    short_branches,
    taken_addresses,
)
from sidestep.errors import TargetError
from sidestep.safety import cache
from sidestep.safety.references import References

START = 0x10_0000


def near(opcode: str, field: int, target: int) -> bytes:
    """An opcode with a displacement that stands at address `field`."""
    return bytes.fromhex(opcode) + struct.pack("<i", target - field - 4)


def filled(size: int, seed: int = 1) -> bytearray:
    """Bytes that hold no opcode in question."""
    return bytearray(random.Random(seed).choices(b"\x00\x01\x02\xff\xfe\x90\xc3\x48\x89", k=size))


@pytest.mark.parametrize(
    ("opcode", "name"),
    [
        ("e8", "call"),
        ("e9", "jmp"),
        ("0f 80", "jo"),
        ("0f 8f", "jg"),
        ("48 8d 05", "lea to %rax"),
        ("4c 8d 3d", "lea to %r15"),
        ("c7 f8", "xbegin"),
        ("48 8b 0d", "mov from data in the text"),
    ],
)
def test_every_reference_is_found(opcode: str, name: str) -> None:
    """Wherever it stands around the borders of the pieces that are searched, and however far it leads."""
    content = filled(0x4_0000)
    expected: list[Reference] = []
    for at in (0, 1000, 0xFFFB, 0x1_FFFE, 0x2_FFF9, 0x3_00FF):
        for number, distance in enumerate((-0x1_8000, -5, 0, 3, 0xFFFF, 0x1_8000)):
            field = START + at + 16 * number + len(bytes.fromhex(opcode))
            target = START + 0x2_0000 + distance + len(expected)
            content[at + 16 * number : field - START + 4] = near(opcode, field, target)
            expected.append(Reference(target, field))
    code = [CodeBytes(START, bytes(content))]
    table = ReferenceTable.build(code)
    for reference in expected:
        target = reference.target
        assert reference in search(code, target - 3, target + 1), name
        assert reference in table.into(target, target + 1)
        assert reference not in table.into(target + 1, target + 100)
        assert reference not in table.into(target - 100, target)
    assert set(expected) <= set(search(code, START + 0x1_8000, START + 0x2_8000)) | set(
        search(code, START, START + 0x1_8000) + search(code, START + 0x2_8000, START + 0x4_0000)
    )


def test_search_and_table_agree_on_random_bytes() -> None:
    chance = random.Random(7)
    code = [
        CodeBytes(START, chance.randbytes(300_000)),
        CodeBytes(START + 0x80_000, bytes(chance.choices(b"\xe8\x0f\x85\x8d\x05\x00\x01\xff", k=100_000))),
    ]
    table = ReferenceTable.build(code)
    assert len(table.packed) > 500
    for _ in range(20):
        first = START + chance.randrange(0x98_000)
        last = first + chance.choice((1, 4, 300, 60_000))
        inside = [each for each in search(code, first, last) if each.target < code[-1].end]
        assert inside == table.into(first, last)


def test_a_table_reports_its_progress() -> None:
    seen: list[int] = []
    ReferenceTable.build([CodeBytes(START, bytes(3 << 20))], seen.append)
    assert seen == [1 << 20, 2 << 20, 3 << 20]


def test_code_that_spans_more_than_a_displacement_reaches_is_refused() -> None:
    with pytest.raises(TargetError, match="4 GiB"):
        ReferenceTable.build([CodeBytes(0, b"\x90"), CodeBytes(1 << 33, b"\x90")])


@pytest.mark.parametrize("width", [1, 5, 32, 33, 500])
def test_short_branches_are_those_of_a_plain_search(width: int) -> None:
    chance = random.Random(width)
    opcodes = {*range(0x70, 0x80), 0xEB, *range(0xE0, 0xE4)}
    for _ in range(60):
        content = bytes(
            chance.choices(b"\x74\xeb\xe2\x7f\x80\x00\x10\x70\xe3\xf0\x05\xff", k=chance.randrange(1, 900))
        )
        first = START + chance.randrange(-50, len(content) + 50)
        expected = []
        for at in range(len(content) - 1):
            target = START + at + 2 + int.from_bytes(content[at + 1 : at + 2], "little", signed=True)
            if content[at] in opcodes and first <= target < first + width:
                expected.append(Reference(target, START + at))
        assert sorted(short_branches(content, START, first, first + width)) == sorted(expected)
        table = ReferenceTable.build_short([CodeBytes(START, content)])
        assert table.into(first, first + width) == sorted(each for each in expected if each.target >= START)


def test_addresses_that_lea_takes() -> None:
    # lea 0x100107(%rip),%rax; lea 0x200000(%rip),%r9; then the start of another one
    content = (
        near("48 8d 05", START + 3, START + 0x107)
        + near("4c 8d 0d", START + 10, 0x20_0000)
        + b"\x48\x8d\x05\x00"
    )
    assert list(taken_addresses([CodeBytes(START, content)])) == [
        Reference(START + 0x107, START + 3),
        Reference(0x20_0000, START + 10),
    ]


def test_constants_of_code_at_a_fixed_address() -> None:
    code = Range(0x40_1000, 0x43_0000)
    content = filled(1000)
    values = {100: 0x40_1000, 107: 0x42_FFFF, 200: 0x40_FFFE, 333: 0x41_0001, 996: 0x40_2000}
    for offset, value in values.items():
        struct.pack_into("<I", content, offset, value)
    stretches = [CodeBytes(0x50_0000, bytes(content))]
    expected = sorted(Reference(value, 0x50_0000 + offset) for offset, value in values.items())
    found = [each for each in search_constants(stretches, *code) if each in expected]
    assert found == expected
    table = ReferenceTable.build_constants(stretches, code)
    for reference in expected:
        around = (reference.target - 2, reference.target + 1)
        assert reference in table.into(*around)
        assert table.into(*around) == search_constants(stretches, *around)


@pytest.mark.parametrize(
    "code",
    [
        Range(0x40_0000, 0x42_0000),
        Range(0xB6_F000, 0x260_0123),
        Range(0x5000, 0x5010),
        Range(0xFFFF_0000, 0x1_0000_0000),
    ],
    ids=["below 16 MiB", "several highest bytes", "one page", "to 4 GiB"],
)
def test_the_table_of_constants_is_that_of_a_plain_search(code: Range) -> None:
    """At every offset: around the borders of pieces, at both ends, overlapping."""
    chance = random.Random(code.start)
    content = bytearray(chance.choices(b"\x00\x01\x02\x40\x41\x5f\x60\xb6\xff", k=(1 << 20) + 4000))
    for at in (0, 1, (1 << 20) - 4, (1 << 20) - 3, (1 << 20) - 1, 1 << 20, len(content) - 4):
        struct.pack_into("<I", content, at, code.start + at % code.size)
    stretches = [CodeBytes(0x60_0001, bytes(content)), CodeBytes(0x80_0000, struct.pack("<I", code.end - 1))]
    expected = []
    for start, piece in stretches:
        for at in range(len(piece) - 3):
            number = int.from_bytes(piece[at : at + 4], "little")
            if number in code:
                expected.append(Reference(number, start + at))
    seen: list[int] = []
    table = ReferenceTable.build_constants(stretches, code, seen.append)
    assert table.into(*code) == sorted(expected)
    assert seen == [1 << 20, (1 << 20) + 4000, (1 << 20) + 4004]
    ends = [CodeBytes(code.start, b"\x90"), CodeBytes(code.end - 1, b"\x90")]
    asked = References(ends, stretches, is_pic=False)
    for question in range(40):  # by windows first, from a table later
        first = code.start + code.size * question // 40
        last = min(first + 0x1_2345, code.end)
        found = [each for each in expected if first <= each.target < last]
        assert asked.constants_into(first, last) == sorted(found)


# The cache


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def code() -> list[CodeBytes]:
    content = filled(1 << 20)
    content[1000:1005] = near("e8", START + 1001, START + 77)
    return [CodeBytes(START, bytes(content))]


def test_a_table_is_found_again_for_the_same_code(home: Path, code: list[CodeBytes]) -> None:
    assert cache.load(code) is None
    table = ReferenceTable.build(code)
    cache.store(code, table)
    again = cache.load(code)
    assert again is not None
    assert again.packed == table.packed
    assert again.into(START + 77, START + 78) == [Reference(START + 77, START + 1001)]
    other = bytearray(code[0].content)
    other[5] ^= 1
    assert cache.load([CodeBytes(START, bytes(other))]) is None
    assert cache.load([CodeBytes(START + 16, code[0].content)]) is None


def test_references_come_from_the_cache_when_it_has_them(home: Path, code: list[CodeBytes]) -> None:
    first = References(code, code, is_pic=True, probes=1000)
    around = Range(START, START + 100)
    assert first.into(START + 77, START + 78, around) == [Reference(START + 77, START + 1001)]
    assert len(list((home / "sidestep" / "references").iterdir())) == 1
    again = References(code, code, is_pic=True, probes=1)
    assert again.into(START + 77, START + 78, around) == [Reference(START + 77, START + 1001)]


def test_many_single_questions_end_in_a_table(home: Path, code: list[CodeBytes]) -> None:
    references = References(code, code, is_pic=True, probes=1)
    folder = home / "sidestep" / "references"
    for question in range(10):
        first = START + 1000 * question
        references.into(first, first + 4, Range(first, first + 50))
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("damage", ["cut", "longer", "flipped", "writable", "link", "fifo", "empty"])
def test_a_damaged_or_foreign_entry_is_not_used(home: Path, code: list[CodeBytes], damage: str) -> None:
    cache.store(code, ReferenceTable.build(code))
    (entry,) = (home / "sidestep" / "references").iterdir()
    raw = entry.read_bytes()
    if damage == "cut":
        entry.write_bytes(raw[:-8])
    elif damage == "longer":
        entry.write_bytes(raw + bytes(8))
    elif damage == "flipped":
        entry.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    elif damage == "writable":
        entry.chmod(0o622)
    elif damage == "link":
        entry.rename(home / "elsewhere")
        entry.symlink_to(home / "elsewhere")
    elif damage == "fifo":
        entry.unlink()
        os.mkfifo(entry, 0o600)
    else:
        entry.write_bytes(b"")
    assert cache.load(code) is None


def test_without_a_place_for_it_there_is_no_cache(
    code: list[CodeBytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "relative")
    assert private_files.directory(cache.KIND) is None
    cache.store(code, ReferenceTable.build(code))
    assert cache.load(code) is None
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    cache.store(code, ReferenceTable.build(code))
    assert cache.load(code) is None


def test_old_entries_make_room(home: Path, code: list[CodeBytes]) -> None:
    folder = home / "sidestep" / "references"
    folder.mkdir(parents=True)
    for number in range(100):
        (folder / f"{number:064x}").touch()
    cache.store(code, ReferenceTable.build(code))
    assert len(list(folder.iterdir())) == 64
    assert cache.load(code) is not None


def test_a_folder_that_cannot_be_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the home of somebody else: here its name is too long."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/" + "x" * 300)
    code = [CodeBytes(START, bytes(1 << 20))]
    cache.store(code, ReferenceTable.build(code))
    assert cache.load(code) is None
