"""What the differential tests share: assemble, relocate, run, compare."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path

from differential.assembly import assemble
from differential.execution import (
    FAR,
    HIGH,
    LOW,
    MIDDLE,
    SIGNED,
    Case,
    Layout,
    Result,
    execute,
    random_registers,
)
from differential.relocation import Relocated, compare_case, ended_by_int3, failures, relocate
from sidestep.arch.x86_64 import insn

LAYOUTS = {"low": LOW, "middle": MIDDLE, "high": HIGH, "signed": SIGNED, "far": FAR}
NEAR = {name: layout for name, layout in LAYOUTS.items() if layout is not FAR}
SEED = int(os.environ.get("SIDESTEP_TEST_SEED", "20261201"))

Outcome = tuple[Relocated, Case, Result]


class Bench:
    """Assembles, relocates and runs snippets, and fails where a copy behaves differently."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.program, self.folder = program, folder
        self.source = random.Random(SEED)
        self._assembled: dict[tuple[Layout | str, ...], list[tuple[int, bytes]]] = {}

    def relocate(
        self, layout: Layout, snippets: Sequence[str], *, keep_bytes: bool = True
    ) -> list[Relocated]:
        key = (layout, *snippets)
        if key not in self._assembled:
            self._assembled[key] = assemble(self.folder, layout, snippets)
        return [
            relocate(address, code, layout.copy + address - layout.original, keep_bytes=keep_bytes)
            for address, code in self._assembled[key]
        ]

    def run(self, layout: Layout, cases: Sequence[tuple[Relocated, Case]]) -> list[Outcome]:
        results = execute(self.program, self.folder, layout, [case for _, case in cases], SEED)
        wrong = failures(cases, results)
        assert not wrong, f"seed {SEED}, {len(wrong)} of {len(cases)} differ, the first:\n{wrong[0]}"
        return [(*case, result) for case, result in zip(cases, results, strict=True)]

    def case(
        self, layout: Layout, relocated: Relocated, pokes: Sequence[tuple[int, int]] = (), **changes: int
    ) -> tuple[Relocated, Case]:
        """One case from random registers, some of them set by `changes`."""
        registers = random_registers(self.source, layout) | changes
        return relocated, compare_case(relocated, registers, self.source.getrandbits(32), pokes)

    def check(
        self, layout: Layout, snippets: Sequence[str], count: int = 12, **changes: int
    ) -> list[Outcome]:
        """Run each snippet from `count` random states, relocated from its bytes and from its decoded form."""
        return self.run(
            layout,
            [
                self.case(layout, relocated, **changes)
                for keep_bytes in (True, False)
                for relocated in self.relocate(layout, snippets, keep_bytes=keep_bytes)
                for _ in range(count)
            ],
        )

    def check_through(
        self, layout: Layout, snippets: Sequence[str], count: int = 12, **changes: int
    ) -> list[Outcome]:
        """`check`; each snippet must get through to its end in one run at least."""
        outcomes = self.check(layout, snippets, count, **changes)
        through = {relocated.code for relocated, _, result in outcomes if ended_by_int3(result)}
        stuck = {text(relocated) for relocated, _, _ in outcomes if relocated.code not in through}
        assert not stuck, f"these never got to their end: {stuck}"
        return outcomes


def text(relocated: Relocated) -> str:
    return "; ".join(insn.text(instruction) for instruction in relocated.instructions)


def cpu_flags() -> frozenset[str]:
    return frozenset(Path("/proc/cpuinfo").read_text().split("flags", 1)[1].split("\n", 1)[0].split())
