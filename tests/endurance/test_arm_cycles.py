"""The short form of `python -m endurance.arm_cycles`."""

from __future__ import annotations

from pathlib import Path

from endurance.arm_cycles import PROGRAM, arm_cycles
from harness.build import Builder


def test_probes_come_and_go_while_sixteen_threads_hammer(build: Builder, tmp_path: Path) -> None:
    done = arm_cycles(build(PROGRAM), tmp_path, cycles=3_000, batch=150)
    assert done.cycles >= 3_000
