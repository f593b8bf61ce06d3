"""What the tests on programs share: the same run without probes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.build import Builder
from harness.programs import run_through
from harness.running import Outcome, Running

Bare = Callable[..., Outcome]


@pytest.fixture(scope="session")
def bare(build: Builder, tmp_path_factory: pytest.TempPathFactory) -> Bare:
    """`bare(NAME, SIZE, BUILD)` is how a run of the program ends that nobody probes; run once a session."""
    outcomes: dict[tuple[str, int | None, str], Outcome] = {}

    def outcome(name: str, size: int | None = None, way: str = "default") -> Outcome:
        key = (name, size, way)
        if key not in outcomes:
            words = [build(name, way), *([str(size)] if size is not None else []), "wait"]
            folder = tmp_path_factory.mktemp("bare")
            with Running(words, folder=folder, environment=build.environment(name)) as running:
                outcomes[key] = run_through(running)
        return outcomes[key]

    return outcome
