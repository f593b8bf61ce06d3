"""Builds the programs in tests/programs, each way once a session.

A program says in comments at its top how it is to be built and run:

    // long: 2000000         a SIZE with which it runs for about half a second
    // flags: -mavx2         more flags for the compiler
    // cpu: avx512f          flags of /proc/cpuinfo without which it is skipped
    // only: glibc           needs glibc: it is not built with musl
    // library: plugin       loads lib/plugin.c, whose path it gets in PLUGIN
    // blocks: line          some of its threads wait in system calls, for a line or for time to pass
    // refused: seccomp      cannot be attached, for this reason of the table in errors.py
    // refusable: f g        functions on which a probe may be refused
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
FLAGS = ("-O2", "-g0", "-pthread", "-Wall", "-Wextra", "-Werror")
COMMENT = re.compile(r"^// (long|flags|cpu|only|library|blocks|refused|refusable): (.*)$", re.M)


@dataclass(frozen=True, slots=True)
class Build:
    """A way to build a program. The flags come behind the usual ones."""

    flags: tuple[str, ...] = ()
    compiler: str | None = None
    stripped: bool = False


BUILDS = {
    "default": Build(),
    "O0": Build(("-O0",)),
    "O3": Build(("-O3",)),
    "no-pie": Build(("-no-pie", "-fno-pie")),
    "static": Build(("-static",)),
    "static-pie": Build(("-static-pie",)),
    "cet": Build(("-fcf-protection=full",)),
    "debug": Build(("-g",)),
    "stripped": Build(stripped=True),
    "musl": Build(compiler="musl-gcc"),
    "musl-static": Build(("-static",), compiler="musl-gcc"),
}


@dataclass(frozen=True, slots=True)
class Source:
    """One file of tests/programs and what its comments say."""

    path: Path
    comments: dict[str, tuple[str, ...]]

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def long(self) -> int | None:
        """The SIZE for a run of about half a second; None where SIZE does not matter."""
        return int(self.comments["long"][0]) if "long" in self.comments else None

    @property
    def refused(self) -> str | None:
        return " ".join(self.comments["refused"]) if "refused" in self.comments else None

    def words(self, comment: str) -> tuple[str, ...]:
        return self.comments.get(comment, ())


@functools.cache
def cpu_flags() -> frozenset[str]:
    found = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    return frozenset(found[1].split()) if found else frozenset()


@functools.cache
def sources() -> dict[str, Source]:
    """Every program by its name."""
    found = {}
    for path in sorted([*PROGRAMS.glob("*.c"), *PROGRAMS.glob("*.cc")]):
        comments = {key: tuple(value.split()) for key, value in COMMENT.findall(path.read_text())}
        found[path.stem] = Source(path, comments)
    return found


@dataclass(slots=True)
class Builder:
    """Compiles programs into `folder`, at most once for each way of building."""

    folder: Path
    _built: dict[tuple[str, str], Path] = field(default_factory=dict)

    def __call__(self, name: str, build: str = "default") -> Path:
        """The executable of tests/programs/NAME.c or .cc, called NAME. Skips what cannot run here."""
        if (name, build) not in self._built:
            self._built[name, build] = self._compile(sources()[name], build)
        return self._built[name, build]

    def _compile(self, source: Source, build: str) -> Path:
        missing = [flag for flag in source.words("cpu") if flag not in cpu_flags()]
        if missing:
            pytest.skip(f"this processor has no {', '.join(missing)}")
        way = BUILDS[build]
        compiler = way.compiler or ("g++" if source.path.suffix == ".cc" else "gcc")
        if shutil.which(compiler) is None:
            pytest.skip(f"{compiler} is not installed (make test installs it)")
        program = self.folder / build / source.name
        program.parent.mkdir(parents=True, exist_ok=True)
        words = [compiler, *FLAGS, *way.flags, *source.words("flags"), str(source.path), "-o", str(program)]
        _run_compiler([*words, "-s"] if way.stripped else words)
        return program

    def environment(self, name: str) -> dict[str, str]:
        """The variables that a program looks for."""
        return {library.upper(): str(self.library(library)) for library in sources()[name].words("library")}

    def library(self, name: str) -> Path:
        """tests/programs/lib/NAME.c as a shared library."""
        library = self.folder / f"{name}.so"
        if not library.exists():
            source = PROGRAMS / "lib" / f"{name}.c"
            _run_compiler(["gcc", *FLAGS, "-fPIC", "-shared", str(source), "-o", str(library)])
        return library


def _run_compiler(words: list[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode or done.stderr:
        pytest.fail(f"{' '.join(words)}\n{done.stderr}", pytrace=False)
