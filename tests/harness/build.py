"""Builds the programs in tests/programs, each way once a session.

A program says in comments at its top how it is to be built and run:

    // long: 2000000         a SIZE with which it runs for about a second or two
    // flags: -mavx2         more flags for the compiler
    // libraries: -ldl       more flags for the linker
    // cpu: avx512f          a flag of /proc/cpuinfo without which it is skipped
    // only: glibc           needs glibc, so it is not built with musl or as a static program
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent.parent / "programs"
WARNINGS = ("-Wall", "-Wextra", "-Werror")
FLAGS = ("-O2", "-g0", "-pthread", *WARNINGS)

#: Ways to build a program: name -> (compiler or None for the usual one, flags, stripped).
BUILDS: dict[str, tuple[str | None, tuple[str, ...], bool]] = {
    "default": (None, (), False),
    "O0": (None, ("-O0",), False),
    "O3": (None, ("-O3",), False),
    "no-pie": (None, ("-no-pie", "-fno-pie"), False),
    "static": (None, ("-static",), False),
    "static-pie": (None, ("-static-pie",), False),
    "musl": ("musl-gcc", (), False),
    "musl-static": ("musl-gcc", ("-static",), False),
    "cet": (None, ("-fcf-protection=full",), False),
    "stripped": (None, (), True),
    "debug": (None, ("-g",), False),
}


@dataclass(frozen=True, slots=True)
class Source:
    """One file of tests/programs and what its comments say."""

    path: Path
    long: int
    flags: tuple[str, ...]
    libraries: tuple[str, ...]
    cpu: tuple[str, ...]
    only: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def missing_cpu_flags(self) -> list[str]:
        return [flag for flag in self.cpu if flag not in cpu_flags()]


@functools.cache
def cpu_flags() -> frozenset[str]:
    found = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    return frozenset(found[1].split()) if found else frozenset()


@functools.cache
def sources() -> dict[str, Source]:
    """Every program by its name."""
    found = {}
    for path in sorted([*PROGRAMS.glob("*.c"), *PROGRAMS.glob("*.cc")]):
        words = {
            key: tuple(value.split())
            for key, value in re.findall(
                r"^// (long|flags|libraries|cpu|only): (.*)$", path.read_text(), re.M
            )
        }
        found[path.stem] = Source(
            path,
            int(words.get("long", ("0",))[0]),
            words.get("flags", ()),
            words.get("libraries", ()),
            words.get("cpu", ()),
            words.get("only", ()),
        )
    return found


@dataclass(slots=True)
class Builder:
    """Compiles programs into `folder`, at most once for each way of building."""

    folder: Path
    _built: dict[tuple[str, str], Path] = field(default_factory=dict)

    def __call__(self, name: str, build: str = "default") -> Path:
        """The executable of tests/programs/NAME.c, or .cc; the file's name is NAME."""
        if (name, build) not in self._built:
            self._built[name, build] = self._compile(sources()[name], build)
        return self._built[name, build]

    def _compile(self, source: Source, build: str) -> Path:
        if source.missing_cpu_flags:
            pytest.skip(f"this processor has no {', '.join(source.missing_cpu_flags)}")
        compiler, flags, stripped = BUILDS[build]
        if compiler is None:
            compiler = "g++" if source.path.suffix == ".cc" else "gcc"
        if shutil.which(compiler) is None:
            pytest.skip(f"{compiler} is not installed (make test installs it)")
        program = self.folder / build / source.name
        program.parent.mkdir(parents=True, exist_ok=True)
        words = [compiler, *FLAGS, *flags, *source.flags, str(source.path), "-o", str(program)]
        words += [*source.libraries, *(["-s"] if stripped else [])]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode or done.stderr:
            pytest.fail(f"{' '.join(words)}\n{done.stderr}", pytrace=False)
        return program

    def library(self, name: str) -> Path:
        """The shared library lib/NAME.c as NAME.so, for programs that load one."""
        library = self.folder / f"{name}.so"
        if not library.exists():
            source = PROGRAMS / "lib" / f"{name}.c"
            words = ["gcc", *FLAGS, "-fPIC", "-shared", str(source), "-o", str(library)]
            subprocess.run(words, check=True, timeout=120)
        return library
