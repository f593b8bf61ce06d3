"""Every program runs as it should without probes: what the other tests compare with is right."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.build import BUILDS, Builder, sources
from harness.programs import comparable, run_through
from harness.running import Running


@pytest.mark.parametrize("name", sorted(sources()))
def test_two_runs_agree(build: Builder, run: Callable[..., Running], name: str) -> None:
    """With and without the waits for a controller."""
    environment = build.environment(name)
    waiting = run_through(run(build(name), "wait", environment=environment))
    running = run(build(name), environment=environment)
    running.close_input()
    alone = running.finish()
    assert not alone.errors
    assert alone.status == waiting.status, str(alone)
    assert alone.status >= 0 or name == "killed", str(alone)
    assert [line for line in comparable(waiting)[0] if line not in ("ready", "done")] == comparable(alone)[0]


@pytest.mark.parametrize("way", [way for way in BUILDS if way != "default"])
@pytest.mark.parametrize("name", ["args", "count", "fork", "switch", "threads"])
def test_it_runs_however_it_is_built(
    build: Builder, run: Callable[..., Running], name: str, way: str
) -> None:
    usual = run_through(run(build(name), "wait"))
    other = run_through(run(build(name, way), "wait"))
    assert comparable(other) == comparable(usual)
