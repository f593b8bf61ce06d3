"""Processes that may not be traced: each kind of refusal says what helps."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sidestep.errors import TargetError
from sidestep.target.process import procfs

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become several users"),
]

NOBODY, SOMEBODY = 65534, 12345
PR_SET_DUMPABLE, PR_SET_KEEPCAPS = 4, 8

Start = Callable[..., int]


@pytest.fixture
def start() -> Iterator[Start]:
    """`start(UID)` is the pid of a process of that user, when it waits. The options are for prctl(2)."""
    started: list[subprocess.Popen[str]] = []

    def begin(uid: int, *, keeps_capabilities: int = 0, dumpable: int = 1) -> int:
        script = f"""if True:
            import ctypes, os
            prctl = ctypes.CDLL(None).prctl
            prctl({PR_SET_KEEPCAPS}, {keeps_capabilities})
            os.setgroups([]), os.setresgid({uid}, {uid}, {uid}), os.setresuid({uid}, {uid}, {uid})
            prctl({PR_SET_DUMPABLE}, {dumpable})
            print("ready", flush=True), input()
        """
        words = [sys.executable, "-I", "-S", "-c", script]
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0
        )
        started.append(process)
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        return process.pid

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def refused(uid: int, pid: int) -> tuple[str, str]:
    """The reason and the text that a user gets who wants to attach; empty if he may."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            try:
                procfs.check_attachable(pid)
                answer = "\n"
            except TargetError as error:
                answer = f"{error.reason.name}\n{error}"
            os.write(writing, answer.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        reason, _, text = pipe.read().partition("\n")
    os.waitpid(child, 0)
    return reason, text


def test_a_process_of_ones_own(start: Start) -> None:
    pid = start(NOBODY)
    if procfs.YAMA_SCOPE.exists() and procfs.YAMA_SCOPE.read_text() != "0\n":
        pytest.skip("kernel.yama.ptrace_scope has to be 0")
    assert refused(NOBODY, pid) == ("", "")


def test_a_process_of_somebody_else(start: Start) -> None:
    reason, text = refused(NOBODY, start(SOMEBODY))
    assert reason == "no-permission"
    assert f"it runs as uid {SOMEBODY}, you as uid {NOBODY}" in text


def test_a_process_that_is_not_dumpable(start: Start) -> None:
    pid = start(NOBODY, dumpable=0)
    reason, text = refused(NOBODY, pid)
    assert reason == "not-dumpable"
    assert "root" in text
    procfs.check_attachable(pid)  # root may


def test_a_process_with_privileges(start: Start) -> None:
    """Capabilities that survived the change of its user."""
    reason, text = refused(NOBODY, start(NOBODY, keeps_capabilities=1))
    assert (reason, "capabilities" in text) == ("no-permission", True)


def test_where_tracing_is_restricted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Yama is not in every kernel: the file that it reports in is another one here."""
    monkeypatch.setattr(procfs, "YAMA_SCOPE", tmp_path / "ptrace_scope")
    mine = procfs.read_status(os.getpid())
    assert procfs.refused_permission(mine).reason.name == "no-permission"
    for value, who in (("1", "only its parents"), ("2", "only root"), ("3", "nobody")):
        procfs.YAMA_SCOPE.write_text(f"{value}\n")
        refusal = procfs.refused_permission(mine)
        assert refusal.reason.name == "ptrace-scope"
        assert f"kernel.yama.ptrace_scope is {value}, {who}" in str(refusal)
        for help_ in ("PR_SET_PTRACER", "-- CMD", "root"):
            assert help_ in str(refusal)
