"""Symbols of stripped files: split off by build-id, by debug link, or compressed inside."""

from __future__ import annotations

import lzma
import shutil
import subprocess
import zlib
from pathlib import Path

import pytest

from harness.samples import Samples
from sidestep.symbols.elf import ElfFile
from sidestep.symbols.functions import FunctionTable
from sidestep.symbols.modules import offline_module
from sidestep.symbols.separate import find_symbols
from sidestep.symbols.symbol_table import find_data

SOURCE = """
#include <string.h>
int value = 3;
static int hidden(int a) { return a * value; }
__attribute__((visibility("default"))) int exported(const char *a) { return hidden((int)strlen(a)); }
int main(int a, char **b) { return exported(b[0]) + a; }
"""
FLAGS = ("-O0", "-Wl,--build-id=sha1", "-rdynamic")


@pytest.fixture
def whole(samples: Samples, tmp_path: Path) -> Path:
    return Path(shutil.copy(samples(SOURCE, *FLAGS), tmp_path / "program"))


def objcopy(*words: str | Path) -> None:
    subprocess.run(["objcopy", *words], check=True, timeout=60)


def debug_file(whole: Path, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    objcopy("--only-keep-debug", whole, target)
    return target


def names_of(elf: ElfFile) -> set[str]:
    table = FunctionTable(elf)
    return {name for name in ("hidden", "main", "exported") if table.named(name)}


def opened(path: Path, root: Path) -> ElfFile:
    """As a process with that root has it."""
    inside = f"/{path.relative_to(root)}"
    elf = ElfFile.open(inside, str(root))
    elf.find_symbols = lambda elf: find_symbols(elf, inside, str(root))
    return elf


def build_id_path(root: Path, elf: ElfFile) -> Path:
    assert elf.build_id
    return root / "usr/lib/debug/.build-id" / elf.build_id[:2] / f"{elf.build_id[2:]}.debug"


def test_by_build_id(whole: Path, tmp_path: Path) -> None:
    (same,) = FunctionTable(ElfFile.open(str(whole))).named("hidden")
    debug_file(whole, build_id_path(tmp_path, ElfFile.open(str(whole))))
    subprocess.run(["strip", whole], check=True, timeout=60)
    assert names_of(ElfFile.open(str(whole))) == {"exported", "main"}
    elf = opened(whole, tmp_path)
    assert names_of(elf) == {"hidden", "main", "exported"}
    table = FunctionTable(elf)
    assert table.named("hidden") == [same]
    assert table.mentions("hidden")
    assert find_data(elf, "value") is not None
    assert elf.text == ElfFile.open(str(whole)).text


def test_a_symbolic_link_in_the_other_root_leads_there(whole: Path, tmp_path: Path) -> None:
    """An absolute link, as package managers make them, and one that would climb out."""
    root = tmp_path / "root"
    root.mkdir()
    link = build_id_path(root, ElfFile.open(str(whole)))
    debug_file(whole, root / "store/symbols")
    subprocess.run(["strip", whole], check=True, timeout=60)
    inside = Path(shutil.copy(whole, root / "program"))
    link.parent.mkdir(parents=True)
    for leads_to in ("/store/symbols", "../" * 40 + "store/symbols"):
        link.symlink_to(leads_to)
        assert "hidden" in names_of(opened(inside, root))
        link.unlink()
    link.symlink_to(link.name)
    assert names_of(opened(inside, root)) == {"exported", "main"}


def test_one_with_another_build_id_is_not_taken(whole: Path, samples: Samples, tmp_path: Path) -> None:
    other = samples(SOURCE.replace("* value", "+ value"), *FLAGS)
    debug_file(other, build_id_path(tmp_path, ElfFile.open(str(whole))))
    subprocess.run(["strip", whole], check=True, timeout=60)
    assert names_of(opened(whole, tmp_path)) == {"exported", "main"}


@pytest.mark.parametrize("folder", ["", ".debug", "usr/lib/debug"])
def test_by_debug_link(whole: Path, tmp_path: Path, folder: str) -> None:
    found = debug_file(whole, tmp_path / folder / "split.debug")
    objcopy("--strip-all", "--remove-section=.note.gnu.build-id", f"--add-gnu-debuglink={found}", whole)
    elf = opened(whole, tmp_path)
    assert names_of(elf) == {"hidden", "main", "exported"}
    # Changed since: its checksum is another one.
    found.write_bytes(found.read_bytes() + b"\0")
    assert names_of(opened(whole, tmp_path)) == {"exported", "main"}


@pytest.mark.parametrize("name", [b"../../program", b"/etc/passwd", b".", b"..", b"", b"program", b"a" * 300])
def test_debug_links_that_lead_elsewhere(whole: Path, tmp_path: Path, name: bytes) -> None:
    """To the file itself, out of the folder, to a folder, to nothing: no error, and no symbols."""
    content = tmp_path / "link"
    subprocess.run(["strip", whole], check=True, timeout=60)
    checksum = zlib.crc32(whole.read_bytes()).to_bytes(4, "little")
    content.write_bytes(name + bytes(4 - len(name) % 4) + checksum)
    objcopy(f"--add-section=.gnu_debuglink={content}", whole)
    assert names_of(opened(whole, tmp_path)) == {"exported", "main"}


def with_mini_debug_information(whole: Path, content: bytes) -> Path:
    packed = whole.with_name("packed")
    packed.write_bytes(content)
    objcopy("--strip-all", f"--add-section=.gnu_debugdata={packed}", whole)
    return whole


def test_mini_debug_information(whole: Path, tmp_path: Path) -> None:
    split = debug_file(whole, tmp_path / "split")
    objcopy("--strip-all", "--keep-symbol=hidden", split)
    with_mini_debug_information(whole, lzma.compress(split.read_bytes()))
    assert names_of(opened(whole, tmp_path)) == {"hidden", "main", "exported"}
    assert offline_module(str(whole)).functions.named("hidden")


def test_mini_debug_information_that_is_damaged(whole: Path, tmp_path: Path) -> None:
    split = debug_file(whole, tmp_path / "split").read_bytes()
    packed = lzma.compress(split)
    for content in (
        packed[:100],
        packed[:-1] + b"x",
        b"\xfd7zXZ\0" + bytes(60),
        b"x" * 30,
        lzma.compress(b""),
        lzma.compress(split[:500]),
        lzma.compress(bytes(1 << 27)),  # 20 KiB that would be 128 MiB
        lzma.compress(split, preset=9),  # asks for 64 MiB to be expanded
    ):
        copy = Path(shutil.copy(whole, tmp_path / "copy"))
        with_mini_debug_information(copy, content)
        assert names_of(opened(copy, tmp_path)) >= {"exported", "main"}
