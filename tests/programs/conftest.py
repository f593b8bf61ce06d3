"""What the tests on programs share: the same run without probes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.build import Builder
from harness.programs import READY, run_until_done
from harness.running import Outcome, Running
from harness.untouched import read_threads

Bare = Callable[..., Outcome]
Masks = Callable[[str], dict[str, str]]


class BareRuns:
    """Runs of programs that nobody probes, each once a session."""

    def __init__(self, build: Builder, new_folder: Callable[..., object]) -> None:
        self.build, self.new_folder = build, new_folder
        self.outcomes: dict[tuple[str, int | None, str], Outcome] = {}
        self.masks: dict[str, dict[str, str]] = {}

    def outcome(self, name: str, size: int | None = None, way: str = "default") -> Outcome:
        key = (name, size, way)
        if key not in self.outcomes:
            words = [self.build(name, way), *([str(size)] if size is not None else []), "wait"]
            environment = self.build.environment(name)
            with Running(words, folder=self.new_folder("bare"), environment=environment) as running:  # type: ignore[arg-type]
                running.expect(READY)
                running.send()
                if run_until_done(running):
                    self.masks[name] = read_threads(running.pid)[running.pid]
                running.send()
                self.outcomes[key] = running.finish()
        return self.outcomes[key]


@pytest.fixture(scope="session")
def bare_runs(build: Builder, tmp_path_factory: pytest.TempPathFactory) -> BareRuns:
    return BareRuns(build, tmp_path_factory.mktemp)


@pytest.fixture
def bare(bare_runs: BareRuns) -> Bare:
    """`bare(NAME, SIZE, BUILD)` is how a run of the program ends."""
    return bare_runs.outcome


@pytest.fixture
def bare_masks(bare_runs: BareRuns) -> Masks:
    """`bare_masks(NAME)`: what signals its first thread blocks, ignores and handles at its second wait."""

    def masks(name: str) -> dict[str, str]:
        bare_runs.outcome(name)
        return bare_runs.masks[name]

    return masks
