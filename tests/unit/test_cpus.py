"""How many CPUs there may be: each has a ring."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sidestep.target.process import processor


def test_without_sys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Some containers have none: then the kernel's masks tell, to the next multiple of four."""
    possible = processor.cpu_count()
    assert possible >= (os.cpu_count() or 1)
    monkeypatch.setattr(processor, "POSSIBLE_CPUS", tmp_path / "missing")
    assert possible <= processor.cpu_count() < possible + 4
