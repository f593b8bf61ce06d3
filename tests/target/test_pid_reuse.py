"""The pid of a target that has ended is given to another process: that one is never taken for the target."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.build import Builder
from harness.samples import Samples
from sidestep.errors import TargetError
from sidestep.target.process import process as linux
from sidestep.target.process import procfs
from sidestep.target.process.memory import ProcessMemory

# clone3 takes the pid that it shall give; the process is a sibling, so that whoever ran this waits for it.
STARTER = r"""
#define _GNU_SOURCE
#include <linux/sched.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    pid_t wanted = atoi(argv[1]);
    struct clone_args arguments = {
        .flags = CLONE_PARENT, .set_tid = (uintptr_t)&wanted, .set_tid_size = 1,
    };
    long pid = syscall(SYS_clone3, &arguments, sizeof arguments);
    if (pid < 0)
        perror("clone3");
    if (pid == 0)
        execv(argv[2], argv + 2);
    return argc < 3 || pid <= 0;
}
"""

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        not os.access("/proc/sys/kernel/ns_last_pid", os.W_OK), reason="only root may choose a pid"
    ),
]


class Waiting:
    """A program that waits for two lines, with a pid of its own or a given one, which must be free."""

    def __init__(self, program: str, starter: str, pid: int | None) -> None:
        self._streams = subprocess.Popen(
            [program, "wait"] if pid is None else [starter, str(pid), program, "wait"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.pid = self._streams.pid if pid is None else pid
        assert self._streams.stdout
        assert self._streams.stdout.readline() == b"ready\n"
        if pid is not None:
            assert self._streams.wait(20) == 0
        self._status: int | None = None

    def finish(self) -> tuple[int, bytes]:
        """Its status and output when it has had its lines."""
        output, _ = self._streams.communicate(b"\n\n", timeout=20)
        return self._wait(), output

    def end(self) -> None:
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)
            self._wait()
            self._streams.communicate()

    def _wait(self) -> int:
        if self._streams.pid == self.pid:
            self._status = self._streams.wait()
        else:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._status


Start = Callable[..., Waiting]


@pytest.fixture
def start(build: Builder, tmp_path: Path) -> Iterator[Start]:
    """`start(PID)` is a waiting process with that pid, if one is given."""
    starter = str(Samples(tmp_path)(STARTER))
    started: list[Waiting] = []

    def begin(pid: int | None = None) -> Waiting:
        started.append(Waiting(str(build("count")), starter, pid))
        return started[-1]

    yield begin
    for each in started:
        each.end()


def test_a_target_whose_place_another_process_has_taken(start: Start) -> None:
    first = start()
    target = linux.attach(first.pid)
    try:
        first.end()
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
    status, output = other.finish()
    assert (status, output[-5:]) == (0, b"done\n")


def test_a_pid_that_changes_hands_while_it_is_attached_to(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the process and the opening of its memory."""
    first = start()

    class Late(ProcessMemory):
        def __init__(self, pid: int) -> None:
            first.end()
            start(pid)
            super().__init__(pid)

    monkeypatch.setattr(linux, "ProcessMemory", Late)
    with pytest.raises(TargetError) as gone:
        linux.attach(first.pid)
    assert gone.value.reason.name == "process-gone"
    assert procfs.read_status(first.pid).tracer == 0
