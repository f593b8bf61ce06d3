"""A player for each test, compiled once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from detours.player import Player, compile_player


@pytest.fixture(scope="session")
def player_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_player(tmp_path_factory.mktemp("player"))


@pytest.fixture
def player(player_program: Path, request: pytest.FixtureRequest) -> Iterator[Player]:
    """A parameter is the number of threads that have rings of their own."""
    with Player(player_program, thread_rings=getattr(request, "param", 2)) as playing:
        yield playing
