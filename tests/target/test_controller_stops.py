"""Ctrl-Z at the controller: the target must not stand still as long as the controller does."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from harness.build import Builder
from harness.running import Running
from sidestep.target.process import procfs

Run = Callable[..., Running]
Controller = subprocess.Popen[bytes]

CONTROLLER = """
import os, signal, sys, threading, time
from sidestep.target.process.process import attach
process = attach(int(sys.argv[1]))

def work(window):
    os.kill(os.getpid(), signal.SIGTSTP)
    time.sleep(0.02)  # for it to arrive; the target is stopped so long
    print("stopped", flush=True)

for _ in range(int(sys.argv[2])):
    process.in_window(work)
    print("let go", flush=True)
process.close()
assert signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL
"""
STOPS = 10


@contextlib.contextmanager
def controller(script: str, *arguments: object) -> Iterator[Controller]:
    words = [sys.executable, "-c", script, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(words, stdout=subprocess.PIPE, process_group=0, env=environment) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def wait_until_stopped(process: Controller) -> None:
    assert os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    result = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOHANG)
    assert result is not None
    assert result.si_status == signal.SIGTSTP


def test_it_stops_when_the_target_runs(build: Builder, run: Run) -> None:
    running = run(build("count"), "1000000000000", "wait")
    running.expect("ready")
    running.send()
    with controller(CONTROLLER, running.pid, STOPS) as process:
        assert process.stdout is not None
        for _ in range(STOPS):
            assert process.stdout.readline() == b"stopped\n"
            wait_until_stopped(process)
            threads = procfs.threads(running.pid)
            assert not any(procfs.read_status(tid).tracer for tid in threads)
            os.kill(process.pid, signal.SIGCONT)
            assert process.stdout.readline() == b"let go\n"
        assert process.wait(20) == 0


def test_a_handler_of_the_user_stays(build: Builder, run: Run) -> None:
    running = run(build("count"), "wait")
    running.expect("ready")
    script = CONTROLLER.replace(
        "process = attach", "signal.signal(signal.SIGTSTP, signal.SIG_IGN)\nprocess = attach"
    ).replace("SIG_DFL", "SIG_IGN")
    with controller(script, running.pid, 2) as process:
        told, _ = process.communicate(timeout=20)
        assert told == b"stopped\nlet go\n" * 2
        assert process.returncode == 0


def test_one_that_is_killed_lets_go_at_once(build: Builder, run: Run) -> None:
    """SIGSTOP cannot be held off: the target stands still with the controller, and goes on with or without
    it."""
    running = run(build("count"), "1000000000000", "wait")
    running.expect("ready")
    running.send()
    script = CONTROLLER.replace("SIGTSTP)\n    time", "SIGSTOP)\n    time")
    for ending in (signal.SIGCONT, signal.SIGKILL):
        with controller(script, running.pid, 1) as process:
            assert process.stdout is not None
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            assert {procfs.thread_state(running.pid, tid) for tid in procfs.threads(running.pid)} == {"t"}
            os.kill(process.pid, ending)
            process.communicate(timeout=20)
        while any(procfs.read_status(tid).tracer for tid in procfs.threads(running.pid)):
            time.sleep(0.001)
    assert procfs.thread_state(running.pid, running.pid) not in "ZX"
