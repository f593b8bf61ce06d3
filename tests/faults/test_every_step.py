"""The short form of `python -m faults.every_step`: faults at some steps of each part of each case."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from faults.controllers import Controllers
from faults.every_step import CASES, ENDINGS, STOPPED_ENDINGS, Case, Laboratory, sample
from harness.build import Builder

SAMPLES = {ENDINGS: 4, STOPPED_ENDINGS: 2}


@pytest.fixture(scope="module")
def laboratory(build: Builder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    with Controllers() as controllers:
        yield Laboratory(build, tmp_path_factory.mktemp("faults"), controllers)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("endings", SAMPLES, ids=["killed", "stopped"])
def test_a_controller_dies_or_stops_at_some_step(
    laboratory: Laboratory, case: Case, endings: tuple[str, ...]
) -> None:
    tally = sample(laboratory, case, SAMPLES[endings], seed=1, endings=endings)
    assert not tally.failures, "\n\n".join(tally.failures)
    assert sum(tally.steps.values()) > 0
