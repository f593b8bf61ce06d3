"""Controllers by the hundred: each is a fork of one process that has everything imported.

`Controllers` talks to that process, which runs this file. A request is a line of JSON, and so is its answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

PHASES = ("attach", "arm", "disarm", "detach")


@dataclass(frozen=True, slots=True)
class Report:
    """What became of a controller. `phase` and `step` say where the fault was; None if it came to its end."""

    ended: str  # "killed", "stopped", "done", or the error
    steps: int
    phase: str | None = None
    step: str | None = None


class Controllers:
    """Use it in a `with`."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self._server = subprocess.Popen(
            [sys.executable, "-m", "faults.controllers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,
            env=environment,
        )

    def __enter__(self) -> Controllers:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._server.pid, signal.SIGKILL)
        self._server.wait()
        for stream in (self._server.stdin, self._server.stdout):
            assert stream is not None
            stream.close()

    def run(self, pid: int, places: list[str], *, records: bool, at: int, number: int) -> Report:
        """A controller that attaches, arms, disarms and detaches, and sends itself a signal at step `at`."""
        return Report(**self._ask("probe", pid=pid, places=places, records=records, at=at, number=number))

    def signal(self, number: int) -> Report:
        """Send a signal to the controller that stopped itself; how that ended."""
        return Report(**self._ask("signal", number=number))

    def clean(self, pid: int, *, by_attaching: bool) -> str:
        """Take away what was left, and say what was done."""
        return str(self._ask("clean", pid=pid, by_attaching=by_attaching)["ended"])

    def _ask(self, what: str, **arguments: Any) -> dict[str, Any]:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps({"what": what, **arguments}).encode() + b"\n")
        self._server.stdin.flush()
        answer: dict[str, Any] = json.loads(self._server.stdout.readline())
        return answer


# The process that forks them


def probe(pid: int, places: list[str], records: bool, enter: Callable[[str], None]) -> None:
    """What a controller does. `enter(phase)` says where it is."""
    import sidestep

    enter("attach")
    target = sidestep.attach(pid)
    enter("arm")
    probes = []
    for place in places:
        with contextlib.suppress(sidestep.ProbeError):  # the second of two: not every instruction has room
            probes += target.count(place).probes
    if records:
        probes += target.trace(f"{places[0]} $arg1").probes
    target.disable_kprobe(probes[0])
    target.enable_kprobe(probes[0])
    enter("disarm")
    target.unregister_kprobes(probes[:1])
    target.unregister_kprobes(probes[1:])
    enter("arm")
    target.count(places[0])
    enter("detach")
    target.detach()


def clean(pid: int, by_attaching: bool) -> str:
    import sidestep

    if by_attaching:
        sidestep.attach(pid).detach()
        return ""
    cleaned = sidestep.clean(pid)
    return "" if cleaned.complete else cleaned.text


class Forker:
    """At most one controller at a time."""

    def __init__(self) -> None:
        self._pid = self._pipe = 0

    def start(self, work: Callable[[int], str]) -> dict[str, Any]:
        """Fork; `work(pipe)` returns how it ended and may write lines of JSON to the pipe before."""
        self._pipe, theirs = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                told = work(theirs)
            except BaseException:
                told = traceback.format_exc()
            tell(theirs, {"ended": told or "done"})
            os._exit(0)
        os.close(theirs)
        return self.follow()

    def follow(self) -> dict[str, Any]:
        _, status = os.waitpid(self._pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            return {"steps": 0, "ended": "stopped"}
        answer: dict[str, Any] = {"steps": 0, "ended": "ended without a word"}
        with open(self._pipe) as lines:
            for line in lines:
                answer.update(json.loads(line))
        if os.WIFSIGNALED(status):
            answer["ended"] = "killed" if os.WTERMSIG(status) == signal.SIGKILL else f"status {status}"
        return answer

    def signal(self, number: int) -> dict[str, Any]:
        os.kill(self._pid, number)
        return self.follow()


def tell(pipe: int, answer: dict[str, Any]) -> None:
    os.write(pipe, json.dumps(answer).encode() + b"\n")


def faulty(pipe: int, at: int, number: int, **arguments: Any) -> str:
    from faults.steps import Steps

    phase = ""

    def enter(name: str) -> None:
        nonlocal phase
        phase = name

    def fault(step: str) -> None:
        frame: FrameType | None = sys._getframe(3)
        callers = []
        while frame is not None and len(callers) < 8:
            callers.append(frame.f_code.co_name)
            frame = frame.f_back
        tell(pipe, {"phase": phase, "step": f"{step} < {' < '.join(callers)}", "steps": at})
        os.kill(os.getpid(), number)

    steps = Steps(at, fault)
    steps.install()
    probe(enter=enter, **arguments)
    tell(pipe, {"steps": steps.done})
    return "done"


def serve() -> None:
    from sidestep import attach, clean  # noqa: F401  (its forks have them)

    forker = Forker()
    for line in sys.stdin:
        print(json.dumps(answer(forker, **json.loads(line))), flush=True)


def answer(forker: Forker, what: str, **request: Any) -> dict[str, Any]:
    match what:
        case "probe":
            return forker.start(lambda pipe: faulty(pipe, **request))
        case "clean":
            return forker.start(lambda pipe: clean(**request))
        case _:
            return forker.signal(**request)


if __name__ == "__main__":
    serve()
