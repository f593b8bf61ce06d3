"""One controller for each process: whoever comes second, or at the same moment, is told so."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.running import Running

pytestmark = pytest.mark.process

CONTROLLER = """
import sys
import sidestep
from sidestep.opening import attach

print("ready", flush=True)
sys.stdin.readline()
try:
    target = attach(int(sys.argv[1]))
    batch = target.count("libc:malloc")
except sidestep.TargetError as error:
    print(error.reason.name, flush=True)
else:
    print("probing", flush=True)
    sys.stdin.readline()
    target.detach()
"""


def test_of_several_that_start_at_the_same_moment_one_stays(run: Callable[..., Running]) -> None:
    program = run("cat")
    program.send("up")
    program.expect("up")
    environment = {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    controllers = [
        run(sys.executable, "-c", CONTROLLER, str(program.pid), environment=environment) for _ in range(3)
    ]
    for each in controllers:
        each.expect("ready")
    for each in controllers:
        each.send()
    said = [each.next_line() for each in controllers]
    assert sorted(map(str, said)) == ["other-session", "other-session", "probing"]
    for each in controllers:
        each.send()
        assert each.finish().status == 0
