"""How much of the system's own libraries can be probed without a trap."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidestep.safety.census import Census, take_census
from sidestep.safety.context import Circumstances, ModuleContext
from sidestep.safety.region import Placement
from sidestep.safety.verdict import verdicts
from sidestep.symbols.elf import ElfFile
from sidestep.symbols.functions import FunctionTable


def library(name: str) -> ModuleContext:
    """A library that this interpreter itself is running with."""
    paths = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line}
    for path in sorted(paths):
        if Path(path).name.startswith(name):
            elf = ElfFile.open(path)
            return ModuleContext(elf, FunctionTable(elf), name=name, batch=Circumstances(probes=10_000))
    pytest.skip(f"{name} is not loaded here")


def test_the_entries_of_the_c_library() -> None:
    context = library("libc.so")
    functions = [function for function in context.functions.all() if not function.is_part]  # type: ignore[attr-defined]
    answers = list(verdicts(context, [function.start for function in functions]))
    placed = sum(isinstance(answer, Placement) for answer in answers)
    assert len(answers) > 1000
    assert placed > 0.985 * len(answers)


def test_every_instruction_of_the_loader() -> None:
    context = library("ld-linux")
    census: Census = take_census(context, context.functions.all())  # type: ignore[attr-defined]
    assert census.instructions > 10_000
    assert census.placed > 0.98 * census.instructions
    assert census.refusals["indirect-jump"] < 0.005 * census.instructions
