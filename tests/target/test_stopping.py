"""Stopping a process, running system calls in it, and what happens when the controller is killed
meanwhile."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from types import ModuleType

import pytest

from harness.build import Builder
from harness.probing import attached
from harness.programs import counts
from harness.running import Running
from harness.untouched import differences, read_state
from sidestep import errors
from sidestep.address import Range
from sidestep.errors import TargetError
from sidestep.maps import read_maps
from sidestep.target.process import areas, procfs, ptrace
from sidestep.target.process.launch import launch
from sidestep.target.process.process import Process, Window, attach

Run = Callable[..., Running]
STOPS = 200
GETPID, GETTID, GETPPID = 39, 186, 110

CONTROLLER = """
import sys
from sidestep.target.process.process import attach
process = attach(int(sys.argv[1]))
def borrow(window):
    with window.calls() as calls:
        for _ in range(20):
            calls.call(39)
print("stopping", flush=True)
while True:
    process.in_window(borrow)
"""


def borrow(window: Window) -> tuple[int, int]:
    with window.calls() as calls:
        return calls.call(GETPID), calls.call(GETTID)


def test_a_borrowed_thread_runs_system_calls_and_goes_on(build: Builder, run: Run) -> None:
    running = run(build("threads"), "20000", "wait")
    running.expect("ready")
    process = attach(running.pid)
    assert process.in_window(borrow)[0] == running.pid
    running.send()
    for _ in range(50):
        process.in_window(borrow)
    process.close()
    running.send()
    assert running.finish().status == 0


@pytest.mark.parametrize(
    "name", ["epoll", "futex", "limited_waits", "messages", "polling", "read_tty", "sigwait"]
)
def test_a_stop_does_not_show_in_system_calls(build: Builder, run: Run, name: str) -> None:
    bare, stopped = run(build(name)), run(build(name))
    process = attach(stopped.pid)
    for running in (bare, stopped):
        running.expect("blocking")
        if running is stopped:
            for _ in range(STOPS):
                process.in_window(borrow)
        running.send()
        running.send()
        running.close_input()
    process.close()
    assert stopped.finish() == bare.finish()


@pytest.mark.parametrize("name", ["nanosleep", "sleeping"])
def test_a_stop_does_not_show_in_sleeps(build: Builder, run: Run, name: str) -> None:
    """They end not too early, nor with an error, nor do they start over."""
    bare, stopped = run(build(name)), run(build(name), "1500")
    process = attach(stopped.pid)
    stopped.expect("blocking")
    for _ in range(STOPS):
        process.in_window(borrow)
    process.close()
    assert stopped.finish() == bare.finish()


@pytest.mark.parametrize(
    ("name", "size"), [("queued_signals", "3000"), ("signals", "300"), ("threadstorm", "1000")]
)
def test_nothing_is_lost_under_many_stops(build: Builder, run: Run, name: str, size: str) -> None:
    """Signals come once and in order; threads come and go."""
    bare, stopped = run(build(name), size), run(build(name), size, "wait")
    stopped.expect("ready")
    process = attach(stopped.pid)
    stopped.send()
    stops = 0
    while stopped.next_line(patience=0) == "" and stops < 5 * STOPS:
        process.in_window(borrow)
        stops += 1
    process.close()
    stopped.send()
    outcome = stopped.finish()
    assert outcome.status == 0, str(outcome)
    lines = [line for line in fixed_lines(outcome.output) if line not in ("ready", "done")]
    assert lines == fixed_lines(bare.finish().output)
    assert stops


def test_a_thousand_threads_are_stopped(build: Builder, run: Run) -> None:
    running = run(build("thousand"))
    running.expect("blocking")
    process = attach(running.pid)
    for _ in range(5):
        assert process.in_window(lambda window: len(window.stop.threads)) == 1001
        assert process.in_window(borrow)[0] == running.pid
    process.close()
    running.send()
    assert running.finish().status == 0


def test_probes_come_and_go_in_a_stopped_process(sidestep: ModuleType, build: Builder, run: Run) -> None:
    """Job control has stopped it: it goes on by SIGCONT only."""
    running = run(build("threads"), "wait")
    running.expect("ready")
    os.kill(running.pid, signal.SIGSTOP)
    os.waitpid(running.pid, os.WUNTRACED)
    before = read_state(running.pid)

    def stands() -> bool:
        return {procfs.thread_state(running.pid, tid) for tid in procfs.threads(running.pid)} == {"T"}

    with attached(sidestep, running.pid) as target:
        (probe,) = target.count("threads:work").probes
        assert stands()
        target.unregister_kprobe(probe)
        assert stands()
    assert stands()
    assert not differences(before, read_state(running.pid))
    with attached(sidestep, running.pid) as target:
        (probe,) = target.count("threads:work").probes
        os.kill(running.pid, signal.SIGCONT)
        running.send()
        running.expect("done")
        os.kill(running.pid, signal.SIGSTOP)
        os.waitpid(running.pid, os.WUNTRACED)
        assert probe.hits
    assert stands()
    os.kill(running.pid, signal.SIGCONT)
    running.send()
    outcome = running.finish()
    assert outcome.status == 0
    assert probe.hits == counts(outcome)["work"]


@pytest.mark.parametrize("name", ["vectors", "signals", "threads", "epoll"])
def test_a_target_survives_the_death_of_a_controller_that_had_stopped_it(
    build: Builder, run: Run, name: str
) -> None:
    bare = run(build(name), "wait")
    running = run(build(name), "wait")
    for each in (bare, running):
        each.expect("ready")
        each.send()
    for _ in range(8):
        controller = subprocess.Popen(
            [sys.executable, "-c", CONTROLLER, str(running.pid)], stdout=subprocess.PIPE, process_group=0
        )
        assert controller.stdout is not None
        assert controller.stdout.readline() == b"stopping\n"
        time.sleep(random.random() * 0.02)
        controller.kill()
        controller.wait()
        controller.stdout.close()
    for each in (bare, running):
        for _ in range(3):
            each.send()
    outcome = running.finish()
    assert outcome.status == 0, str(outcome)
    if name != "epoll":  # a call that cannot be restarted from a signal frame may return EINTR
        assert fixed_lines(outcome.output) == fixed_lines(bare.finish().output)


def fixed_lines(output: str) -> list[str]:
    return [line for line in output.splitlines() if not line.startswith("varying")]


def test_areas_come_and_go_without_a_trace(build: Builder, run: Run) -> None:
    running = run(build("threads"), "wait")
    running.expect("ready")
    before = read_maps(running.pid)
    descriptors = os.listdir(f"/proc/{running.pid}/fd")
    process = attach(running.pid)
    main = [m for m in before if m.path.endswith("/threads")]
    near = Range(main[0].start, main[-1].end)

    def create(window: Window) -> tuple[areas.SharedArea, areas.CodeArena]:
        shared = areas.create_shared(window, 1 << 20, [(0, 1 << 20, 0)])
        window.maps = read_maps(running.pid)
        return shared, areas.create_arena(window, near, 1 << 16, 1 << 14)

    shared, arena = process.in_window(create)
    assert arena.reaches(near)
    added = [m for m in read_maps(running.pid) if m not in before]
    assert sorted(m.perms for m in added) == ["r-xp", "rw-p", "rw-s"]
    assert os.listdir(f"/proc/{running.pid}/fd") == descriptors
    assert areas.processes_that_map(shared.inode) == [running.pid]
    process.memory.write(shared.address, b"hello")
    assert shared.view[:5] == b"hello"
    process.in_window(
        lambda window: areas.unmap(window, [shared.span, Range(arena.address, arena.address + arena.size)])
    )
    shared.close()
    assert read_maps(running.pid) == before
    process.close()
    running.send()
    running.send()
    assert running.finish().status == 0


SEIZE = """
import sys
from sidestep.target.process import ptrace
ptrace.call(ptrace.Request.SEIZE, int(sys.argv[1]))
print("seized", flush=True)
sys.stdin.read()
"""


def test_no_thread_stays_ours_when_another_is_traced_by_somebody(build: Builder, run: Run) -> None:
    running = run(build("threads"), "100000000000", "wait")
    running.expect("ready")
    running.send()
    while len(procfs.threads(running.pid)) < 3:
        time.sleep(0.01)
    process = attach(running.pid)
    last = procfs.threads(running.pid)[-1]
    words = [sys.executable, "-c", SEIZE, str(last)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"seized\n"
        with pytest.raises(TargetError) as caught:
            process.in_window(borrow)
        assert caught.value.reason is errors.ALREADY_TRACED
        assert str(other.pid) in str(caught.value)
        tracers = {tid: procfs.read_status(tid).tracer for tid in procfs.threads(running.pid)}
        assert tracers == {tid: other.pid if tid == last else 0 for tid in tracers}
        other.communicate()
    process.close()


def test_a_stopped_process_stays_stopped(build: Builder, run: Run) -> None:
    running = run(build("threads"), "wait")
    running.expect("ready")
    os.kill(running.pid, signal.SIGSTOP)
    os.waitpid(running.pid, os.WUNTRACED)
    process = attach(running.pid)
    for _ in range(5):
        assert process.in_window(borrow)[0] == running.pid
    process.close()
    assert {procfs.thread_state(running.pid, tid) for tid in procfs.threads(running.pid)} == {"T"}
    os.kill(running.pid, signal.SIGCONT)
    running.send()
    running.send()
    assert running.finish().status == 0


def test_a_process_that_is_stopped_while_a_thread_is_borrowed_stops(build: Builder, run: Run) -> None:
    """SIGSTOP cannot be blocked, so it arrives in the middle of our system calls."""
    running = run(build("count"), "wait")
    running.expect("ready")
    process = attach(running.pid)

    def stop_and_borrow(window: Window) -> None:
        with window.calls() as calls:
            os.kill(running.pid, signal.SIGSTOP)
            assert calls.call(GETPID) == running.pid

    process.in_window(stop_and_borrow)
    process.close()
    assert wait_for_state(running.pid, "T")
    os.kill(running.pid, signal.SIGCONT)
    running.send()
    running.send()
    assert running.finish().status == 0


def wait_for_state(pid: int, state: str) -> bool:
    deadline = time.monotonic() + 5
    while procfs.thread_state(pid, pid) != state and time.monotonic() < deadline:
        time.sleep(0.01)
    return procfs.thread_state(pid, pid) == state


def test_a_signal_that_takes_the_place_of_the_stop(
    build: Builder, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel forgets a requested stop when it comes between the look for it and a stop for a signal."""
    running = run(build("count"), "wait")
    running.expect("ready")
    process = attach(running.pid)
    call, forgotten = ptrace.call, []

    def forget_the_first_stop(request: ptrace.Request, tid: int, *rest: int) -> int:
        if request is ptrace.Request.INTERRUPT and not forgotten:
            forgotten.append(tid)
            os.kill(tid, signal.SIGWINCH)
            return 0
        return call(request, tid, *rest)

    monkeypatch.setattr(ptrace, "call", forget_the_first_stop)
    assert process.in_window(borrow)[0] == running.pid
    assert forgotten
    process.close()
    running.send()
    running.send()
    assert running.finish().status == 0


def test_who_shares_memory(build: Builder, run: Run) -> None:
    running, other = run(build("count"), "wait"), run(build("count"), "wait")
    for each in (running, other):
        each.expect("ready")
    assert procfs.share_memory(running.pid, running.pid)
    assert not procfs.share_memory(running.pid, other.pid)
    for each in (running, other):
        each.send()
        each.send()
        assert each.finish().status == 0


def launched(words: list[str]) -> Process:
    return launch(words, stdout=subprocess.PIPE)


def test_launch_holds_a_program_before_its_first_instruction() -> None:
    process = launched(["/bin/sh", "-c", "echo hello; exit 7"])
    assert process.held
    assert process.in_window(borrow) == (process.pid, process.pid)
    maps = read_maps(process.pid)
    assert not any("libc" in m.path for m in maps)
    process.resume()
    ended = process.wait(10)
    assert ended is not None
    assert ended.code == 7
    assert process.child is not None
    assert process.child.stdout is not None
    assert process.child.stdout.read() == b"hello\n"
    process.child.stdout.close()
    process.close()


def test_launch_reports_what_cannot_be_started() -> None:
    with pytest.raises(FileNotFoundError):
        launched(["/no/such/program"])
    with pytest.raises(PermissionError):
        launched(["/etc/passwd"])


def refusal(pid: int) -> errors.Reason:
    with pytest.raises(TargetError) as caught:
        attach(pid)
    assert str(caught.value).count("\n") <= 2
    return caught.value.reason


def test_what_cannot_be_attached_is_named(build: Builder, run: Run, tmp_path: object) -> None:
    assert refusal(2**22 - 1) is errors.NO_SUCH_PROCESS
    for nobody in (2**22 + 1, 10**20, 0, -1):
        with pytest.raises(TargetError) as raised:
            procfs.choose(nobody)
        assert raised.value.reason is errors.NO_SUCH_PROCESS
    assert refusal(os.getpid()) is errors.NO_PERMISSION
    assert refusal(2) is errors.KERNEL_THREAD
    zombie = subprocess.Popen(["true"])
    while procfs.read_status(zombie.pid).state != "Z":
        time.sleep(0.01)
    assert refusal(zombie.pid) is errors.ZOMBIE
    zombie.wait()
    running = run(build("threads"), "wait")
    running.expect("ready")
    tracer = subprocess.Popen(
        ["gdb", "-q", "-p", str(running.pid)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    while not procfs.read_status(running.pid).tracer:
        time.sleep(0.01)
    with pytest.raises(TargetError) as caught:
        attach(running.pid)
    assert caught.value.reason is errors.ALREADY_TRACED
    assert str(tracer.pid) in str(caught.value)
    tracer.communicate(b"detach\nquit\n")
    other = subprocess.Popen([build("threads"), "wait"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    with pytest.raises(TargetError) as caught:
        procfs.find("threads")
    assert caught.value.reason is errors.SEVERAL_PROCESSES
    assert str(other.pid) in caught.value.detail
    other.kill()
    other.communicate()
    with pytest.raises(TargetError) as caught:
        procfs.find("no-such-name")
    assert caught.value.reason is errors.NO_SUCH_PROCESS
