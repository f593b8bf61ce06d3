"""A controller that is killed leaves a program that goes on; what it left behind can be taken away."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from types import ModuleType

import pytest

from harness.build import Builder
from harness.programs import comparable, counts, counts_by_pid, place, run_until_done
from harness.running import Outcome, Running
from harness.untouched import differences, read_areas, read_state, remains
from sidestep.events import layout

Run = Callable[..., Running]
Bare = Callable[..., Outcome]

SIZES = {
    "threads": 20000000, "signals": 1000, "forkthreads": 800, "vectors": 3000000, "count": 300000000,
    "faults": 500, "fault_threads": 2000, "handlers": 10000,
}  # fmt: skip

# Attaches, probes and detaches for ever; says so when it has done all of it once.
CONTROLLER = """
import sys, sidestep
pid, places = int(sys.argv[1]), sys.argv[2:]
while True:
    target = sidestep.attach(pid)
    for place in places:
        target.count(place)
    print("armed", flush=True)
    target.detach()
"""

# Probes and stays.
STAYING = CONTROLLER.replace("    target.detach()", "    import time; time.sleep(60)")


# Is killed right before a system call of a kind in the target: CALL, N (the Nth of them).
KILLED_AT_A_CALL = """
import os, sys
from sidestep.target.process.remote import RemoteCalls
wanted, left = int(sys.argv[-2]), int(sys.argv[-1])
call = RemoteCalls.call
def counted(self, number, *arguments):
    global left
    left -= number == wanted
    if not left:
        os.kill(os.getpid(), 9)
    return call(self, number, *arguments)
RemoteCalls.call = counted
import sidestep
target = sidestep.attach(int(sys.argv[1]))
target.count(sys.argv[2])
target.trace(sys.argv[2])
target.detach()
"""
MMAP, MPROTECT, MUNMAP, MADVISE, CLOSE, MEMFD_CREATE = 9, 10, 11, 28, 3, 319


def start_controller(script: str, running: Running, places: list[str]) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-c", script, str(running.pid), *places]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(words, stdout=subprocess.PIPE, process_group=0, env=environment)


def kill(controller: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(controller.pid, signal.SIGKILL)
    controller.wait()
    assert controller.stdout is not None
    controller.stdout.close()


def run_clean(running: Running) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "sidestep", "clean", "-p", str(running.pid)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env=environment)


def clean(running: Running) -> None:
    done = run_clean(running)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("seed", range(4))
def test_killed_at_any_moment(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare, name: str, seed: int
) -> None:
    expected = bare(name, SIZES[name])
    places = [place(name, function) for function in counts(expected)]
    running = run(build(name), str(SIZES[name]), "wait", time_limit=60)
    running.expect("ready")
    running.send()
    controller = start_controller(CONTROLLER, running, places)
    assert controller.stdout is not None
    controller.stdout.readline()
    time.sleep(random.Random(seed).uniform(0, 0.05))
    kill(controller)
    assert run_until_done(running)
    running.send()
    outcome = running.finish()
    assert comparable(outcome) == comparable(expected), str(outcome)


@pytest.mark.parametrize("name", ["threads", "fork", "epoll", "count"])
def test_remains_are_taken_away(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare, name: str
) -> None:
    expected = bare(name)
    places = [place(name, function) for function in counts(expected)]
    running = run(build(name), "wait")
    running.expect("ready")
    before = read_state(running.pid)
    controller = start_controller(STAYING, running, places)
    assert controller.stdout is not None
    controller.stdout.readline()
    kill(controller)
    clean(running)
    assert not differences(before, read_state(running.pid))
    running.send()
    run_until_done(running)
    running.send()
    outcome = running.finish()
    assert comparable(outcome) == comparable(expected), str(outcome)


def test_remains_in_a_daemon_are_taken_away(sidestep: ModuleType, build: Builder, run: Run) -> None:
    running = run(build("forks"), "wait")
    running.expect("ready")
    before = read_state(running.pid)
    controller = start_controller(STAYING, running, [place("forks", "work")])
    assert controller.stdout is not None
    controller.stdout.readline()
    running.send()
    run_until_done(running)
    daemon = [*counts_by_pid(Outcome("\n".join(running.lines), "", 0))["work"]][-1]
    kill(controller)
    clean(running)
    assert not remains(before, read_state(daemon))
    running.send()
    assert running.finish().status == 0


def test_remains_behind_a_place_without_a_record(sidestep: ModuleType, build: Builder, run: Run) -> None:
    """A probe with a condition has two counters and one record."""
    running = run(build("threads"), "wait")
    running.expect("ready")
    before = read_state(running.pid)
    places = [f"{place('threads', 'other')} a=$arg1 if a == 1", place("threads", "work")]
    controller = start_controller(STAYING, running, places)
    assert controller.stdout is not None
    controller.stdout.readline()
    kill(controller)
    clean(running)
    assert not differences(before, read_state(running.pid))
    running.send()
    run_until_done(running)
    running.send()
    assert running.finish().status == 0


@pytest.mark.parametrize(
    ("call", "number"),
    [
        *[(MMAP, 1), (MPROTECT, 1), (CLOSE, 1)],  # the shared area
        *[(MMAP, 2), (MPROTECT, 2), (MADVISE, 2)],  # a code arena
        *[(MMAP, 3), (MMAP, 4), (CLOSE, 2)],  # the rings
        *[(MUNMAP, 1), (MUNMAP, 2), (MUNMAP, 3)],
    ],
)
def test_remains_of_a_session_that_had_just_begun_or_ended(
    sidestep: ModuleType, build: Builder, run: Run, call: int, number: int
) -> None:
    running = run(build("threads"), "wait")
    running.expect("ready")
    before = read_state(running.pid)
    arguments = [place("threads", "work"), str(call), str(number)]
    controller = start_controller(KILLED_AT_A_CALL, running, arguments)
    assert controller.wait(60) == -signal.SIGKILL
    kill(controller)
    clean(running)
    assert not differences(before, read_state(running.pid))
    running.send()
    run_until_done(running)
    running.send()
    assert running.finish().status == 0


def test_the_next_controller_takes_the_remains_away(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare
) -> None:
    running = run(build("threads"), "wait")
    running.expect("ready")
    before = read_state(running.pid)
    controller = start_controller(STAYING, running, [place("threads", "work")])
    assert controller.stdout is not None
    controller.stdout.readline()
    kill(controller)
    target = sidestep.attach(running.pid)
    (probe,) = target.count("threads:work").probes
    running.send()
    run_until_done(running)
    assert probe.hits == counts(bare("threads"))["work"]
    target.detach()
    assert not [change for change in differences(before, read_state(running.pid)) if "code" in change]
    running.send()
    assert comparable(running.finish()) == comparable(bare("threads"))


def test_a_second_controller_is_told_who_is_there(sidestep: ModuleType, build: Builder, run: Run) -> None:
    """Or it works: both are right, silence and damage are not."""
    running = run(build("threads"), "wait")
    running.expect("ready")
    controller = start_controller(STAYING, running, [place("threads", "work")])
    try:
        assert controller.stdout is not None
        controller.stdout.readline()
        told = ""
        try:
            target = sidestep.attach(running.pid)
            target.count("threads:other")
            target.detach()
        except sidestep.TargetError as error:
            told = str(error)
        assert not told or str(controller.pid) in told
    finally:
        kill(controller)


def shared_memory(pid: int) -> int:
    """Where the session's header is."""
    return next(area.start for area in read_areas(pid) if "sidestep" in area.path)


def left_behind(run: Run, build: Builder) -> Running:
    """A program with a probe on `work` whose controller is dead."""
    running = run(build("threads"), "wait")
    running.expect("ready")
    controller = start_controller(STAYING, running, [place("threads", "work")])
    assert controller.stdout is not None
    controller.stdout.readline()
    kill(controller)
    return running


def finish(running: Running, bare: Bare) -> None:
    running.send()
    run_until_done(running)
    running.send()
    outcome = running.finish()
    assert comparable(outcome) == comparable(bare("threads")), str(outcome)


def test_an_arena_that_is_none_is_left_alone(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare
) -> None:
    """The program has overwritten the header: it says that its stack is ours."""
    running = left_behind(run, build)
    stack = next(area for area in read_areas(running.pid) if area.path == "[stack]")
    with open(f"/proc/{running.pid}/mem", "r+b", buffering=0) as memory:
        memory.seek(shared_memory(running.pid) + layout.ARENAS_OFFSET)
        memory.write(struct.pack("<QQ", stack.start, stack.end - stack.start))
    assert "overwritten" in run_clean(running).stdout
    assert stack.start in {area.start for area in read_areas(running.pid)}
    finish(running, bare)


def test_what_a_jump_leads_to_stays(sidestep: ModuleType, build: Builder, run: Run, bare: Bare) -> None:
    """The program has overwritten the table of probes: there is a jump that nobody can take out."""
    running = left_behind(run, build)
    with open(f"/proc/{running.pid}/mem", "r+b", buffering=0) as memory:
        memory.seek(shared_memory(running.pid) + layout.PROBES_OFFSET)
        memory.write(bytes(layout.PROBE_RECORD_SIZE))
    assert "a jump at" in run_clean(running).stdout
    finish(running, bare)


def test_a_header_that_is_noise(sidestep: ModuleType, build: Builder, run: Run, bare: Bare) -> None:
    """Nothing can be done for the process, and that is not called clean."""
    running = left_behind(run, build)
    with open(f"/proc/{running.pid}/mem", "r+b", buffering=0) as memory:
        memory.seek(shared_memory(running.pid))
        memory.write(b"noise" * 20)
    done = run_clean(running)
    assert (done.returncode, "overwritten" in done.stdout) == (1, True)
    finish(running, bare)
