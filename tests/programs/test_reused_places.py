"""The places of buffers that went are given to new ones: only when nobody is in them or will return there."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import ModuleType

import pytest

from harness.build import Builder
from harness.probing import attached
from harness.programs import comparable, place, run_until_done
from harness.running import Outcome, Running
from sidestep.address import Range
from sidestep.target.process import ptrace
from sidestep.target.process.process import Window
from sidestep.target.process.ptrace import Request

Run = Callable[..., Running]
Bare = Callable[..., Outcome]

STEPS = 100_000  # that a program needs at most from its first line to its first hit


def park(running: Running, inside: Range) -> Callable[[Window], None]:
    """For a window: lets the program begin, steps its only thread into a range, and stops it there as job
    control does."""
    pid = running.pid

    def work(window: Window) -> None:
        (thread,) = window
        running.send()
        for _ in range(STEPS):
            ptrace.call(Request.SINGLESTEP, pid)
            ptrace.wait(pid, block=True)
            if ptrace.get_registers(pid).rip in inside:
                break
        else:
            pytest.fail("it never came there")
        thread.forget()
        os.kill(pid, signal.SIGSTOP)

    return work


@pytest.mark.parametrize("text", ["{}", "{} +0(%sp):x64", "{} a=+0(%sp):x64 if a == 1"])
def test_a_thread_is_in_a_routine_that_the_buffer_called(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare, text: str
) -> None:
    """It is not in the buffer, but will return there."""
    name = "recursion"
    running = run(build(name), "wait")
    running.expect("ready")
    with attached(sidestep, running.pid) as target:
        register = target.count if text == "{}" else target.trace
        (probe,) = register(text.format(place(name, "descend"))).probes
        engine = target._engine
        (routines,) = engine.space.routines
        target.process.in_window(park(running, routines))
        target.unregister_kprobe(probe)
        assert engine._retired
        target.count(place(name, "fibonacci"))
        os.kill(running.pid, signal.SIGCONT)
        run_until_done(running)
    running.send()
    outcome = running.finish()
    assert comparable(outcome) == comparable(bare(name)), str(outcome)
