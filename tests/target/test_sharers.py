"""Processes that run in the target's memory without being its threads: clone(CLONE_VM), vfork."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from types import ModuleType

import pytest

from harness.build import Builder
from harness.probing import attached
from harness.programs import run_until_done
from harness.running import Running
from harness.untouched import differences, read_areas, read_code, read_state, remains
from sidestep import errors
from sidestep.errors import SidestepError, TargetError
from sidestep.target.process import procfs, sharers, stop
from sidestep.target.process.process import attach

Run = Callable[..., Running]


def sharing(pid: int, wanted: int) -> set[int]:
    """Waits until that many processes run in the memory of one."""
    while len(found := sharers.sharing(pid, sharers.all_processes()) - {pid}) != wanted:
        time.sleep(0.001)
    return found


def at_work(build: Builder, run: Run) -> tuple[Running, set[int]]:
    """The program, and those that share its memory."""
    running = run(build("sharers"), "1000000000000", "wait")
    running.expect("ready")
    running.send()
    running.expect("working")
    return running, sharing(running.pid, 3)


def states(pids: set[int]) -> set[str]:
    return {procfs.thread_state(pid, pid) for pid in pids}


def test_they_are_stopped_with_it(build: Builder, run: Run) -> None:
    running, others = at_work(build, run)
    process = attach(running.pid)
    for _ in range(20):
        assert process.in_window(lambda window: states(others)) == {"t"}
        assert process.in_window(lambda window: set(window.stop.threads)) == {running.pid, *others}
    assert "t" not in states(others)
    ended = others.pop()
    os.kill(ended, signal.SIGKILL)
    while procfs.thread_state(ended, ended) not in "ZX":
        time.sleep(0.001)
    assert process.in_window(lambda window: set(window.stop.threads)) == {running.pid, *others}
    process.close()


def test_the_first_is_found_by_another(build: Builder, run: Run) -> None:
    """Any of them can be the target."""
    running, others = at_work(build, run)
    target = others.pop()
    process = attach(target)
    assert process.in_window(lambda window: states(others | {running.pid})) == {"t"}
    process.close()


def test_nobody_is_looked_for_twice(build: Builder, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    running = run(build("count"), "wait")
    running.expect("ready")
    process = attach(running.pid)
    newest, compared = procfs.last_pid(), []
    process.in_window(lambda window: None)
    share_memory = procfs.share_memory

    def counted(tid: int, other: int) -> bool:
        compared.append(other)
        return share_memory(tid, other)

    monkeypatch.setattr(procfs, "share_memory", counted)
    process.in_window(lambda window: None)
    given_out = int(procfs.last_pid()) - int(newest)  # by others on this machine
    assert len(compared) <= given_out
    process.close()


def test_probes_in_memory_of_several_processes(sidestep: ModuleType, build: Builder, run: Run) -> None:
    """They come and go while all of them execute the probed function."""
    running = run(build("sharers"), "100000000", "wait")
    running.expect("ready")
    before = read_state(running.pid)
    running.send()
    running.expect("working")
    rounds = 0
    with attached(sidestep, running.pid) as target:
        while running.next_line(patience=0) == "":
            target.unregister_kprobes(target.count("sharers:work").probes)
            rounds += 1
        target.count("sharers:work")
    assert rounds
    assert not remains(before, read_state(running.pid))
    running.send()
    assert running.finish().status == 0


def test_it_ends_before_those_that_share_its_memory(sidestep: ModuleType, build: Builder, run: Run) -> None:
    """They go on with its code, which has to become what it was."""
    running = run(build("sharers"), "1000000000000", "wait")
    running.expect("ready")
    before = read_code(running.pid, read_areas(running.pid))
    running.send()
    running.expect("working")
    others = sharing(running.pid, 3)
    with attached(sidestep, running.pid) as target:
        target.count("sharers:work")
        os.kill(running.pid, signal.SIGKILL)
        os.waitpid(running.pid, 0)
    for pid in others:
        areas = read_areas(pid)
        assert read_code(pid, areas) == before
        assert not any("sidestep" in area.path for area in areas)
    for pid in others:
        os.kill(pid, signal.SIGKILL)


def sleeping_child(running: Running) -> int:
    """A vfork child that is stopped by job control, so that it does not go on before it is told to."""
    while True:
        (child,) = sharing(running.pid, 1)
        os.kill(child, signal.SIGSTOP)
        while (state := procfs.thread_state(child, child)) not in "TZX":
            time.sleep(0.001)
        if state == "T":
            return child


def test_a_vfork_child_that_sleeps(
    sidestep: ModuleType, build: Builder, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parent cannot be stopped, so nothing is changed, and it is said who is waited for."""
    monkeypatch.setattr(stop, "PATIENCE", 0.3)
    running = run(build("vfork_sleep"), "200", "wait")
    running.expect("ready")
    before = read_state(running.pid)
    with attached(sidestep, running.pid) as target:
        (probe,) = target.count("vfork_sleep:work").probes
        target.unregister_kprobe(probe)
        code = read_code(running.pid, read_areas(running.pid))
        running.send()
        child = sleeping_child(running)
        with pytest.raises(TargetError) as refusal:
            target.count("vfork_sleep:work")
        assert refusal.value.reason is errors.THREAD_STUCK
        assert str(child) in str(refusal.value)
        assert code == read_code(running.pid, read_areas(running.pid))
        # The tracing thread has ended: nobody is left attached.
        while any(procfs.read_status(tid).tracer for tid in [*procfs.threads(running.pid), child]):
            time.sleep(0.001)
        os.kill(child, signal.SIGCONT)
        target.count("vfork_sleep:work")
    assert not remains(before, read_state(running.pid))
    run_until_done(running)
    running.send()
    assert running.finish().status == 0


def test_detaching_while_a_vfork_child_sleeps(
    sidestep: ModuleType, build: Builder, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop, "PATIENCE", 0.3)
    running = run(build("vfork_sleep"), "200", "wait")
    running.expect("ready")
    before = read_state(running.pid)
    target = sidestep.attach(running.pid)
    target.count("vfork_sleep:work")
    running.send()
    child = sleeping_child(running)
    with pytest.raises(SidestepError) as problem:
        target.detach()
    assert str(child) in str(problem.value)
    os.kill(child, signal.SIGCONT)
    run_until_done(running)
    assert sidestep.clean(running.pid).complete
    assert not [each for each in differences(before, read_state(running.pid)) if "code" in each]
    assert not remains(before, read_state(running.pid))
    running.send()
    assert running.finish().status == 0


def test_who_has_no_memory_shares_none(build: Builder, run: Run) -> None:
    """A process that has ended and a kernel thread: neither has any."""
    running = run(build("count"), "wait")
    running.expect("ready")
    os.kill(running.pid, signal.SIGKILL)
    os.waitid(os.P_PID, running.pid, os.WEXITED | os.WNOWAIT)
    assert not sharers.sharing(running.pid, sharers.all_processes())
