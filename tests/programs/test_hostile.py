"""Programs that damage what a controller shares with them: it stays sane, and says what it cannot do."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from types import ModuleType

import pytest

from harness.build import Builder
from harness.programs import READY, comparable, place, run_through, run_until_done
from harness.running import Running
from sidestep.errors import SidestepError
from sidestep.maps import read_maps
from sidestep.sessions import clean, sessions_text
from sidestep.target.process.areas import is_ours

pytestmark = pytest.mark.process

Run = Callable[..., Running]


@pytest.mark.parametrize("size", [1000, 1001, 1002])
def test_noise_in_everything_that_is_shared(
    sidestep: ModuleType, build: Builder, run: Run, size: int
) -> None:
    """Noise, both, or most unmapped: only declared errors come, and the program ends as it does bare."""
    bare = run_through(run(build("vandal"), size, "wait"))
    running = run(build("vandal"), size, "wait")
    running.expect(READY)
    target = sidestep.attach(running.pid)
    target.trace(f"{place('vandal', 'work')} value=$arg1 name=$comm text=+0($stack):string")
    (counted,) = target.count(place("vandal", "work")).probes
    running.send()
    assert run_until_done(running)
    for event in target.events(0.05):
        assert str(event).isprintable()
    assert counted.hits >= 0
    assert counted.hits_by_pid is not None
    assert all(character.isprintable() for character in target.list().replace("\n", ""))
    with contextlib.suppress(SidestepError):
        sessions_text(running.pid)
    with contextlib.suppress(SidestepError):
        clean(running.pid)
    with contextlib.suppress(SidestepError):
        target.detach()
    running.send()
    assert comparable(running.finish()) == comparable(bare)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may open what others have mapped")
def test_shared_memory_cannot_be_cut_off(sidestep: ModuleType, build: Builder, run: Run) -> None:
    """Else the controller would die of SIGBUS at its next look at a counter."""
    running = run(build("count"), "wait")
    running.expect(READY)
    with sidestep.attach(running.pid) as target:
        target.trace(place("count", "work"))
        shared = [m for m in read_maps(running.pid) if is_ours(m.path)]
        assert len({mapping.inode for mapping in shared}) == 2
        for mapping in shared:
            path = f"/proc/{running.pid}/map_files/{mapping.start:x}-{mapping.end:x}"
            with open(path, "r+b", buffering=0) as file:
                for size in (0, 1 << 50):
                    with pytest.raises(PermissionError):
                        os.ftruncate(file.fileno(), size)
