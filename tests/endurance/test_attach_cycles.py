"""The short form of `python -m endurance.attach_cycles`."""

from __future__ import annotations

from pathlib import Path

from endurance.attach_cycles import PROGRAM, attach_cycles
from harness.build import Builder


def test_controllers_come_and_go_and_nothing_grows(build: Builder, tmp_path: Path) -> None:
    done = attach_cycles(build(PROGRAM), tmp_path, cycles=40)
    assert done.cycles == 40
