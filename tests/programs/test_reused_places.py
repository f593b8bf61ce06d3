"""Threads are still in buffers that went: nobody gets their places, and they come out nowhere in a jump."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harness.build import Builder
from harness.probing import attached
from harness.programs import comparable, counts, place, run_until_done
from harness.running import Outcome, Running
from harness.stepper import PTRACE_SINGLESTEP
from sidestep import errors
from sidestep.address import Range
from sidestep.target.process import ptrace
from sidestep.target.process.process import Window, attach

Run = Callable[..., Running]
Bare = Callable[..., Outcome]

STEPS = 100_000  # that a program needs at most from its first line to its first hit


def park(begin: Callable[[], object], inside: Range, but: Collection[int] = ()) -> Callable[[Window], None]:
    """For a window: lets the program begin, steps its only thread into a range, and stops it there as job
    control does; `but` not there."""

    def work(window: Window) -> None:
        (thread,) = window
        pid = thread.tid
        begin()
        for _ in range(STEPS):
            ptrace.call(PTRACE_SINGLESTEP, pid)  # type: ignore[arg-type]
            ptrace.wait_long(pid)
            here = ptrace.get_registers(pid).rip
            if here in inside and here not in but:
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
        target.process.in_window(park(running.send, routines))
        target.unregister_kprobe(probe)
        assert engine._retired
        target.count(place(name, "fibonacci"))
        os.kill(running.pid, signal.SIGCONT)
        run_until_done(running)
    running.send()
    outcome = running.finish()
    assert comparable(outcome) == comparable(bare(name)), str(outcome)


NAME = "overlapping"


def parked_in_a_buffer(running: Running, target: Any) -> list[Any]:
    """Probes on the first two instructions of `work`, and a thread in their buffer that can only go on.

    The second probe alone would have its jump over the end of the region of both.
    """
    probes = target.count(place(NAME, "work"), place(NAME, "work", 3)).probes
    (detour,) = target._registry.detours.values()
    copies = {copy for _, copy in detour.buffer.boundaries}
    target.process.in_window(park(running.send, detour.buffer.span, copies))
    return list(probes)


def go_on(running: Running) -> None:
    os.kill(running.pid, signal.SIGCONT)
    run_until_done(running)


def finish(running: Running, bare: Bare) -> None:
    running.send()
    outcome = running.finish()
    assert comparable(outcome) == comparable(bare(NAME)), str(outcome)


@pytest.mark.parametrize("how", ["disable_kprobe", "unregister_kprobe"])
@pytest.mark.parametrize("which", [0, 1])
def test_a_probe_goes_while_a_thread_is_in_the_buffer_that_it_shared(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare, how: str, which: int
) -> None:
    running = run(build(NAME), "wait")
    running.expect("ready")
    with attached(sidestep, running.pid) as target:
        probes = parked_in_a_buffer(running, target)
        gone = probes.pop(which)
        getattr(target, how)(gone)
        go_on(running)
        assert probes[0].hits == counts(bare(NAME))["work"]
    finish(running, bare)


def test_a_probe_comes_while_a_thread_is_in_a_buffer_that_comes_out_under_it(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare
) -> None:
    """It is refused, since the thread does not move on, and is taken when it has."""
    running = run(build(NAME), "wait")
    running.expect("ready")
    with attached(sidestep, running.pid) as target:
        target.unregister_kprobes(parked_in_a_buffer(running, target))
        with pytest.raises(sidestep.ProbeError) as refusal:
            target.count(place(NAME, "work", 3))
        assert refusal.value.reason is errors.SAVED_IP
        go_on(running)
        target.count(place(NAME, "work", 3))
    finish(running, bare)


@pytest.mark.parametrize("detaches", [False, True])
def test_a_child_is_in_a_buffer_whose_place_its_parent_uses_again(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare, detaches: bool
) -> None:
    """Nothing that the parent puts there reaches the child."""
    name = "forked_slowly"
    running = run(build(name), "wait")
    running.expect("ready")
    with attached(sidestep, running.pid) as target:
        probes = target.count(place(name, "work"), place(name, "work", 3)).probes
        (old,) = target._registry.detours.values()

        def meddle() -> None:
            (child,) = map(int, Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split())
            (pipe,) = (line.split()[1] for line in running.lines if line.startswith("pipe "))
            process = attach(child)
            copies = {copy for _, copy in old.buffer.boundaries}
            with open(f"/proc/{running.pid}/fd/{pipe}", "wb", buffering=0) as go:
                process.in_window(park(lambda: go.write(b"x"), old.buffer.span, copies))
            process.close()
            target.unregister_kprobes(probes)
            spans = []
            for where in (place(name, "other"), place(name, "other", 5), place(name, "work", 3)):
                target.count(where)
                spans += [detour.buffer.span for detour in target._registry.detours.values()]
            assert any(span.overlaps(old.buffer.span) for span in spans)
            if detaches:
                timer = threading.Timer(0.1, os.kill, (child, signal.SIGCONT))
                timer.start()
                target.detach()
                timer.join()
            else:
                os.kill(child, signal.SIGCONT)

        running.send()
        run_until_done(running, meddle)
    running.send()
    outcome = running.finish()
    assert comparable(outcome) == comparable(bare(name)), str(outcome)
