"""A target that is killed in the middle of any step: an error that says so, and nothing else is lost."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harness.build import Builder
from harness.running import Running
from sidestep import errors
from sidestep.errors import TargetError
from sidestep.target.process import ptrace, remote
from sidestep.target.process.memory import ProcessMemory

pytestmark = pytest.mark.process

STRIDE = 61  # of all steps, these are taken
GONE = (errors.PROCESS_GONE, errors.NO_SUCH_PROCESS, errors.ZOMBIE)


class Killer:
    """Kills a process before a step: a ptrace request, a write to its memory or a call in it."""

    def __init__(self, pid: int, step: int) -> None:
        self.pid, self.left, self.killed = pid, step, False

    def before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                os.kill(self.pid, signal.SIGKILL)
                self.killed = True
            return function(*arguments)

        return step


def steps(first: int) -> itertools.count[int]:
    return itertools.count(first, STRIDE)


@pytest.mark.parametrize(("name", "first"), [("count", 1), ("threads", 21)])
def test_killed_before_any_step(
    sidestep: ModuleType, build: Builder, tmp_path: Path, name: str, first: int
) -> None:
    """Attaching, probing, unregistering, probing again with events, detaching."""
    for step in steps(first):
        with Running([build(name), "100000000000", "wait"], folder=tmp_path) as running:
            running.expect("ready")
            running.send()
            killed, reason = probe_and_kill(sidestep, running.pid, name, step)
        if not killed:
            assert step > STRIDE
            break
        assert reason in (None, *GONE), f"at step {step}: {reason}"


def probe_and_kill(sidestep: ModuleType, pid: int, name: str, step: int) -> tuple[bool, errors.Reason | None]:
    """Whether there were so many steps, and what was raised."""
    killer = Killer(pid, step)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ptrace, "call", killer.before(ptrace.call))
        patch.setattr(ProcessMemory, "write", killer.before(ProcessMemory.write))
        patch.setattr(remote.RemoteCalls, "call", killer.before(remote.RemoteCalls.call))
        try:
            with sidestep.attach(pid) as target:
                (probe,) = target.count(f"{name}:work").probes
                target.unregister_kprobe(probe)
                target.trace(f"{name}:work value=$arg1")
        except TargetError as error:
            return killer.killed, error.reason
    return killer.killed, None
