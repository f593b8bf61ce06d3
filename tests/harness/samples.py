"""Compiles source texts that stand in tests; and what binutils say about a file, to compare with."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

RUSTC = shutil.which("rustc") or str(Path.home() / ".cargo/bin/rustc")
COMPILERS = {".c": "gcc", ".cc": "g++", ".s": "g++", ".rs": RUSTC}


class Samples:
    """Compiles a text at most once for each set of flags. Files are called `sample`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, source: str, *flags: str, suffix: str = ".c", version_script: str = "") -> Path:
        compiler = COMPILERS[suffix]
        if shutil.which(compiler) is None:
            pytest.skip(f"{Path(compiler).name} is not installed")
        key = hashlib.sha256("\0".join((source, suffix, version_script, *flags)).encode()).hexdigest()[:16]
        folder = self._folder / key
        target = folder / "sample"
        if target.exists():
            return target
        folder.mkdir(exist_ok=True)
        text = folder / f"sample{suffix}"
        text.write_text(source)
        words = [compiler, *flags, str(text), "-o", str(target)]
        if version_script:
            script = folder / "versions"
            script.write_text(version_script)
            words.append(f"-Wl,--version-script={script}")
        environment = {**os.environ, "RUSTC_BOOTSTRAP": "1"}  # Lets a stable rustc choose how it mangles.
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=120, check=False, cwd=folder, env=environment
        )
        if done.returncode:
            pytest.fail(f"{' '.join(words)}\n{done.stderr}", pytrace=False)
        return target

    def stripped(self, path: Path, *flags: str) -> Path:
        """A copy without symbols (or as strip's `flags` say)."""
        target = path.with_name("stripped" + "".join(flags).replace("-", "_"))
        if not target.exists():
            subprocess.run(["strip", *flags, "-o", target, path], check=True, timeout=60)
        return target


@dataclass(frozen=True, slots=True)
class ListedSymbol:
    """A defined function in `readelf -sW`. `version` has a `@` in front if it is the default one."""

    address: int
    size: int
    type: str
    bind: str
    name: str
    version: str


def output_of(*words: str | Path) -> str:
    """What a program of binutils prints."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True, errors="replace")
    return done.stdout


def listed_functions(path: Path, *, dynamic: bool = False) -> list[ListedSymbol]:
    """The functions that readelf lists."""
    found: list[ListedSymbol] = []
    row = re.compile(r"\s*\d+: ([0-9a-f]+)\s+(\w+) (FUNC|IFUNC)\s+(\w+)\s+\w+\s+(?:\[.*?\]\s+)?(\w+) (\S+)")
    for line in output_of("readelf", "--dyn-syms" if dynamic else "-s", "-W", path).splitlines():
        match = row.match(line)
        if match and match[5] != "UND":
            name, at, version = match[6].partition("@")
            size = int(match[2], 0)
            found.append(
                ListedSymbol(int(match[1], 16), size, match[3], match[4], name, version if at else "")
            )
    return found


def frame_entries(path: Path) -> dict[int, int]:
    """Start to end of every unwind entry that readelf decodes."""
    words = ["readelf", "--debug-dump=frames-interp", str(path)]
    # It fails when it does not find separate debug information, after it has printed all of it.
    text = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False).stdout
    return {
        int(start, 16): int(end, 16)
        for start, end in re.findall(r" FDE .*pc=([0-9a-f]+)\.\.([0-9a-f]+)", text)
    }
