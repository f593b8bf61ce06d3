"""The pid of a target that has ended is given to another process: that one is never taken for the target."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.build import Builder
from sidestep.errors import TargetError
from sidestep.target.process import process as linux
from sidestep.target.process import procfs
from sidestep.target.process.memory import ProcessMemory

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
TRIES = 200

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not os.access(LAST_PID, os.W_OK), reason=f"only root may write to {LAST_PID}"),
]

Child = subprocess.Popen[bytes]
Start = Callable[..., Child]


@pytest.fixture
def start(build: Builder) -> Iterator[Start]:
    """`start(PID)` is a waiting process with that pid, if one is given: it must be free."""
    started: list[Child] = []

    def begin(pid: int | None = None) -> Child:
        for _ in range(TRIES):
            if pid is not None:
                LAST_PID.write_text(str(pid - 1))
            child = subprocess.Popen([build("count"), "wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            if pid in (None, child.pid):
                started.append(child)
                assert child.stdout
                assert child.stdout.readline() == b"ready\n"
                return child
            end(child)  # somebody else was faster
        pytest.fail(f"no process got the pid {pid}")

    yield begin
    for child in started:
        end(child)


def end(child: Child) -> None:
    child.kill()
    child.communicate()


def test_a_target_whose_place_another_process_has_taken(start: Start) -> None:
    first = start()
    target = linux.attach(first.pid)
    try:
        end(first)
        other = start(first.pid)
        maps = Path(f"/proc/{other.pid}/maps").read_bytes()
        assert not target.alive
        assert not target.is_same_program
        with pytest.raises(TargetError) as gone:
            target.in_window(lambda window: pytest.fail("the other process was taken for the target"))
        assert gone.value.reason.name == "process-gone"
        with pytest.raises(TargetError):
            target.memory.read(int(maps.partition(b"-")[0], 16), 1)
        assert target.wait(1) is not None
    finally:
        target.close()
    assert Path(f"/proc/{other.pid}/maps").read_bytes() == maps
    assert procfs.read_status(other.pid).tracer == 0
    output, _ = other.communicate(b"\n\n", timeout=20)
    assert (other.returncode, output[-5:]) == (0, b"done\n")


def test_a_pid_that_changes_hands_while_it_is_attached_to(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the process and the opening of its memory."""
    first = start()

    class Late(ProcessMemory):
        def __init__(self, pid: int) -> None:
            end(first)
            start(pid)
            super().__init__(pid)

    monkeypatch.setattr(linux, "ProcessMemory", Late)
    with pytest.raises(TargetError) as gone:
        linux.attach(first.pid)
    assert gone.value.reason.name == "process-gone"
    assert procfs.read_status(first.pid).tracer == 0
