"""Small files of machine code for the tests of symbols, compiled once a session."""

from __future__ import annotations

import pytest

from harness.samples import Samples


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    """`samples(SOURCE, FLAG, ...)` is the path of the compiled source text."""
    return Samples(tmp_path_factory.mktemp("samples"))
