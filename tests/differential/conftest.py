"""The harness that runs machine code is compiled once a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from differential.bench import Bench
from differential.execution import compile_harness


@pytest.fixture(scope="session")
def execute_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_harness(tmp_path_factory.mktemp("execute"))


@pytest.fixture
def bench(execute_program: Path, tmp_path: Path) -> Bench:
    return Bench(execute_program, tmp_path)
