"""Starting a program under control: it is stopped before its first instruction."""

from __future__ import annotations

import os
import select
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import IO, Any

from sidestep import errors
from sidestep.errors import TargetError
from sidestep.target.process import procfs, ptrace
from sidestep.target.process.process import Process, Tracer
from sidestep.target.process.ptrace import Event, Option, Request
from sidestep.target.process.stop import Stop, StoppedThread
from sidestep.target.process.waits import Waits


def launch(
    arguments: Sequence[str],
    *,
    env: dict[str, str] | None = None,
    cwd: str | None = None,
    stdin: int | IO[Any] | None = None,
    stdout: int | IO[Any] | None = None,
    stderr: int | IO[Any] | None = None,
) -> Process:
    """Start a program and stop it before its first instruction.

    The child waits on a pipe until the tracer has seized it: if the controller dies before, the pipe closes
    and the child ends; if it dies later, the kernel lets the program run.
    """
    tracer = Tracer()
    return tracer.run(lambda: _launch(tracer, list(arguments), env, cwd, (stdin, stdout, stderr)))


def _launch(
    tracer: Tracer,
    arguments: list[str],
    env: dict[str, str] | None,
    cwd: str | None,
    streams: tuple[int | IO[Any] | None, ...],
) -> Process:
    pid_read, pid_write = os.pipe()
    go_read, go_write = os.pipe()

    def wait_for_tracer() -> None:
        os.close(go_write)
        os.write(pid_write, os.getpid().to_bytes(8, "little"))
        if os.read(go_read, 1) != b"g":
            os._exit(127)

    started: Future[subprocess.Popen[bytes]] = Future()

    def start() -> None:
        try:
            started.set_result(
                subprocess.Popen(
                    arguments,
                    env=env,
                    cwd=cwd,
                    stdin=streams[0],
                    stdout=streams[1],
                    stderr=streams[2],
                    preexec_fn=wait_for_tracer,  # noqa: PLW1509  (it only reads and writes pipes)
                )
            )
        except BaseException as error:
            started.set_exception(error)

    starter = threading.Thread(target=start, name="sidestep-launch", daemon=True)
    starter.start()
    readable = select.poll()
    readable.register(pid_read, select.POLLIN)
    while not readable.poll(50) and not started.done():
        pass
    raw = os.read(pid_read, 8) if readable.poll(0) else b""
    if not raw:
        for descriptor in (pid_read, pid_write, go_read, go_write):
            os.close(descriptor)
        started.result()
        raise AssertionError("unreachable: the start failed")
    pid = int.from_bytes(raw, "little")
    try:
        ptrace.seize(pid, Option.SYSGOOD | Option.EXEC)
        os.write(go_write, b"g")
        running = _stop_at_first_instruction(pid)
    finally:
        for descriptor in (pid_read, pid_write, go_read, go_write):
            os.close(descriptor)
    child = started.result()  # the error of a program that cannot be started comes from here
    if not running:
        raise TargetError(arguments[0], errors.PROCESS_GONE)
    process = Process(pid, procfs.read_status, tracer)
    process.child = child
    stop = Stop(pid, Waits())
    stop.threads[pid] = StoppedThread(pid, pid)
    process.hold(stop)
    return process


def _stop_at_first_instruction(pid: int) -> bool:
    """Let the child run until its exec is done and it stands before the new program; False when the exec
    failed.

    The exec event itself is inside the system call, which would still overwrite a register: the thread is
    taken on to the stop on its way out.
    """
    wanted = Event.EXEC
    while True:
        try:
            status = ptrace.wait_long(pid)
        except ChildProcessError:
            return False  # reaped by the Popen that found the exec failed
        if not os.WIFSTOPPED(status & 0xFFFF):
            return False
        event = ptrace.event_of(status)
        if event == wanted == Event.STOP:
            return True
        if event == Event.EXEC:
            wanted = Event.STOP
            ptrace.call(Request.INTERRUPT, pid)
        number = os.WSTOPSIG(status & 0xFFFF) if status >> 16 == 0 else 0
        ptrace.call(Request.CONT, pid, 0, number)
