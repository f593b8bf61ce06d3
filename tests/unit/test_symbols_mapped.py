"""Images by mappings, for maps that no loader makes. Time limits of the tests are the bound."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fuzz import elf
from sidestep.address import PAGE
from sidestep.maps import Mapping, overlapping
from sidestep.symbols.elf import ElfFile
from sidestep.symbols.mapped import find_images

START = 0x7F0000000000


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("program")
    elf.program(folder)
    return folder / "sample"


def nothing(address: int, size: int) -> bytes:
    return b""


def mapped(path: Path, start: int, perms: str = "r-xp", offset: int = 0, size: int = PAGE) -> Mapping:
    status = path.stat()
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    return Mapping(start, start + size, perms, offset, device, status.st_ino, str(path))


def anonymous(start: int) -> Mapping:
    return Mapping(start, start + PAGE, "r-xp", 0, "00:00", 0, "")


def text_offset(program: Path) -> int:
    return next(load.offset for load in ElfFile.open(str(program)).loads if load.flags & 1)


def test_a_file_that_is_mapped_thousands_of_times(program: Path) -> None:
    offset = text_offset(program) & -PAGE
    maps = [mapped(program, START + 16 * PAGE * n, offset=offset) for n in range(30_000)]
    images = list(find_images(os.getpid(), maps, nothing))
    assert 1 <= len(images) <= 64
    assert images[0].ranges[0].start == START


def test_much_code_that_is_no_file(program: Path) -> None:
    """As of compilers at run time, between mappings of files."""
    first = mapped(program, START, "r--p")
    last = mapped(program, START + (1 << 40), "r--p", PAGE)
    maps = [first, *(anonymous(START + (1 << 20) + 2 * PAGE * n) for n in range(30_000)), last]
    assert len(list(find_images(os.getpid(), maps, nothing))) == 1


def test_many_files_with_code_between_them(program: Path, tmp_path: Path) -> None:
    maps: list[Mapping] = []
    for number in range(500):
        link = tmp_path / str(number)
        link.hardlink_to(program)
        at = START + (number << 24)
        maps += [mapped(link, at, "r--p"), *(anonymous(at + (n + 5 << 12)) for n in range(0, 100, 2))]
        maps.append(mapped(link, at + (1 << 20), "r--p"))
    paths = {image.file.path for image in find_images(os.getpid(), maps, nothing)}
    assert paths == {str(tmp_path / str(number)) for number in range(500)}


def test_mappings_that_overlap_a_range(program: Path) -> None:
    maps = [mapped(program, START + 4 * PAGE * n, size=2 * PAGE) for n in range(4)]
    for start in range(-2, 18):
        for size in (1, 2, 3):
            low, high = START + start * PAGE, START + (start + size) * PAGE
            wanted = [m for m in maps if m.start < high and low < m.end]
            assert list(overlapping(maps, low, high)) == wanted, (start, size)
