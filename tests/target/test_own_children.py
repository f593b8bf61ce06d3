"""Targets that the controller's own process has started: their end is for whoever waits for it, and a thread
that waits for them is told the kernel's stops, too."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from types import ModuleType

import pytest

from harness.build import Builder
from sidestep import errors
from sidestep.errors import TargetError
from sidestep.target.process import procfs
from sidestep.target.process.process import Window, attach
from sidestep.target.process.syscalls import Syscall

pytestmark = pytest.mark.process

ROUNDS = 8


@pytest.fixture
def child(build: Builder) -> Iterator[subprocess.Popen[bytes]]:
    """Eight threads that work."""
    words = [str(build("threads")), "100000000000"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, process_group=0) as started:
        yield started
        started.kill()


def test_an_end_in_the_middle_of_a_stop_is_told_to_who_started_it(child: subprocess.Popen[bytes]) -> None:
    process = attach(child.pid)

    def kill_and_borrow(window: Window) -> None:
        child.kill()
        with window.calls() as calls:
            calls.call(Syscall.GETPID)

    with pytest.raises(TargetError) as gone:
        process.in_window(kill_and_borrow)
    assert gone.value.reason is errors.PROCESS_GONE
    process.close()
    assert child.wait(20) == -signal.SIGKILL


def test_a_thread_that_waits_for_it(child: subprocess.Popen[bytes]) -> None:
    waiting = threading.Thread(target=child.wait)
    waiting.start()
    deadline = time.monotonic() + 20
    while not procfs.is_waited_for_here(child.pid) and time.monotonic() < deadline:
        time.sleep(0.001)
    with pytest.raises(TargetError) as refused:
        attach(child.pid)
    assert refused.value.reason is errors.WAITED_FOR_HERE
    child.kill()
    waiting.join(20)
    assert child.returncode == -signal.SIGKILL


def test_stops_that_are_told_to_another_thread(child: subprocess.Popen[bytes], sidestep: ModuleType) -> None:
    """Nothing hangs, and nothing stays stopped; what `poll` makes of a stop is its own."""
    ended = threading.Event()

    def poll() -> None:
        while not ended.is_set():
            subprocess.Popen.poll(child)
            child.returncode = None
            time.sleep(0.0001)

    thief = threading.Thread(target=poll)
    thief.start()
    try:
        with sidestep.attach(child.pid) as target:
            for _ in range(ROUNDS):
                target.unregister_kprobes(target.count("threads:work", "threads:other").probes)
            (probe,) = target.count("threads:work").probes
            deadline = time.monotonic() + 20
            while not probe.hits and time.monotonic() < deadline:
                time.sleep(0.01)
            assert probe.hits > 0
    finally:
        ended.set()
        thief.join()


def test_a_launched_one_is_waited_for_while_it_is_probed(build: Builder, sidestep: ModuleType) -> None:
    ends: list[object] = []
    target = sidestep.launch([str(build("threads")), "3000000"], stdout=subprocess.DEVNULL)
    (probe,) = target.count("threads:work").probes
    waiting = threading.Thread(target=lambda: ends.append(target.wait()))
    waiting.start()
    with contextlib.suppress(TargetError):  # it may be through already
        for _ in range(ROUNDS):
            target.unregister_kprobes(target.count("threads:other").probes)
    waiting.join(60)
    assert [str(end) for end in ends] == ["Exit(code=0, signal=None)"]
    target.detach()
    assert probe.hits == 8 * 3_000_000
