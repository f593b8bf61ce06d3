"""Native handlers: machine code against the interpreter against plain Python, over generated programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from detours.player import compile_player
from differential.handler_programs import generate
from differential.handler_runs import run_batch

BATCH = 20
BATCHES = 6
RUNS = 25  # of each program


@pytest.fixture(scope="session")
def player_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_player(tmp_path_factory.mktemp("player"))


@pytest.mark.parametrize("first", range(0, BATCH * BATCHES, BATCH))
def test_three_ways_agree(player_program: Path, first: int) -> None:
    tally = run_batch(player_program, range(first, first + BATCH), RUNS)
    assert tally.runs > BATCH * RUNS / 4
    assert tally.faults


def test_the_generator_says_everything() -> None:
    texts = [generate(seed, ("regs.ip = 1",)) for seed in range(200)]
    for words in (
        "emit(", "text=string(", "text=comm()", "trace=stack(", "stacks.id()", "write_", "read_",
        "del table[", "del names[", "del flows[", "in names", "in flows", "names[string(", "names[comm()",
        "Flow(", "return 1",
    ):  # fmt: skip
        assert any(words in text for text in texts), words
