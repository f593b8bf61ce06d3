"""Changes that are broken off in the middle, by Ctrl-C or by what a child of the target is in: nothing of the
target's code may be forgotten, since at the end the memory that it leads to goes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from harness.build import Builder
from harness.probing import attached
from harness.programs import run_until_done
from harness.running import Running
from harness.untouched import differences, read_areas, read_code, read_state

Run = Callable[..., Running]


def interrupt_main_thread() -> None:
    """Ctrl-C, and time for it to arrive."""
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)
    time.sleep(0.05)


@pytest.mark.parametrize("window", range(4))
@pytest.mark.parametrize("place", ["before", "behind"])
def test_an_interrupt_while_the_target_is_stopped(
    sidestep: ModuleType, build: Builder, run: Run, monkeypatch: pytest.MonkeyPatch, window: int, place: str
) -> None:
    """Python's own Ctrl-C: KeyboardInterrupt somewhere in a call, then `with` detaches."""
    running = run(build("threads"), "wait")
    running.expect("ready")
    before = read_state(running.pid)
    interrupted = False
    with pytest.raises(KeyboardInterrupt), sidestep.attach(running.pid) as target:  # noqa: PT012
        stop, windows = target.process.in_window, 0

        def in_window(function: Callable[[Any], Any]) -> Any:
            def interrupting(at: Any) -> Any:
                nonlocal interrupted
                now = windows == window + 1 and not interrupted
                interrupted |= now
                if now and place == "before":
                    interrupt_main_thread()
                result = function(at)
                if now and place == "behind":
                    interrupt_main_thread()
                return result

            nonlocal windows
            windows += 1
            return stop(interrupting)

        monkeypatch.setattr(target.process, "in_window", in_window)
        target.trace("threads:work")
        target.unregister_kprobes(target.probes)
        target.count("threads:work")
        assert interrupted
        raise KeyboardInterrupt  # it was delivered, and could not break anything off
    assert not differences(before, read_state(running.pid))
    running.send()
    run_until_done(running)
    running.send()
    assert running.finish().status == 0


def test_a_child_forks_while_its_siblings_are_changed(
    sidestep: ModuleType, build: Builder, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was not there when the children were listed: it is changed, too."""
    running = run(build("fork"), "wait")
    running.expect("ready")
    with attached(sidestep, running.pid) as target:
        (probe,) = target.count("fork:work").probes
        running.send()
        run_until_done(running)
        family = target._engine._family
        listed = family.children
        first = True

        def without_the_last(*arguments: bytes) -> list[int]:
            nonlocal first
            found = sorted(listed(*arguments))
            first, was_first = False, first
            return found[:-1] if was_first else found

        monkeypatch.setattr(family, "children", without_the_last)
        last = max(listed())
        armed = read_code(last, read_areas(last))
        target.unregister_kprobe(probe)
        assert not first
        assert read_code(last, read_areas(last)) != armed
    running.send()
    assert running.finish().status == 0


FORKING_CONTROLLER = """
import os, sys, sidestep, sidestep.sessions
target = sidestep.attach(int(sys.argv[1]))
target.count("threads:work")
child = os.fork()
if child == 0:
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
print(sidestep.sessions.sessions_text(int(sys.argv[1])))
"""


def test_a_child_of_the_controller_leaves_the_probes(build: Builder, run: Run) -> None:
    """Its exit runs what was registered to run at the exit of its parent."""
    running = run(build("threads"), "wait")
    running.expect("ready")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", FORKING_CONTROLLER, str(running.pid)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert "work+0x0" in done.stdout
    running.send()
    run_until_done(running)
    running.send()
    assert running.finish().status == 0


IN_A_NAMESPACE = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
assert libc.unshare(0x20000000) == 0  # CLONE_NEWPID
child = os.fork()
if child == 0:
    sys.stdin.readline()
    os._exit(0)
print("ready", flush=True)
os.waitpid(child, 0)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a pid namespace takes root")
def test_a_child_in_a_pid_namespace_is_alive(sidestep: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is called 1 there: its counters must not be given to others because nobody here is."""
    words = [sys.executable, "-c", "input()\n" + IN_A_NAMESPACE]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        with attached(sidestep, running.pid) as target:
            target.count("libc:getppid")
            running.stdin.write(b"\n")
            assert running.stdout.readline() == b"ready\n"
            exists = os.path.exists
            monkeypatch.setattr(os.path, "exists", lambda path: path != "/proc/1" and exists(path))
            assert target._engine.is_alive(1)
            assert not target._engine.is_alive(2**22 - 1)
        running.stdin.write(b"\n")
        assert running.wait(20) == 0
