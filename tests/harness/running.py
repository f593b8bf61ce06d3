"""Runs programs in process groups of their own, with a time limit, and says what happened when they end badly."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.crash import describe_core, describe_process

TIME_LIMIT = 30.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended. `status` is the exit code, or minus the signal's number."""

    output: str
    errors: str
    status: int
    crash: str = ""

    def __str__(self) -> str:
        ending = f"exit status {self.status}"
        if self.status < 0:
            ending = f"ended by {signal.Signals(-self.status).name}"
        parts = [ending, f"output:\n{self.output}", f"errors:\n{self.errors}", self.crash]
        return "\n".join(part for part in parts if part)


class Running:
    """A process that runs. All of its group is killed when the `with` ends."""

    def __init__(
        self,
        words: Sequence[str | Path],
        *,
        folder: Path,
        time_limit: float = TIME_LIMIT,
        environment: Mapping[str, str] | None = None,
        merge_errors: bool = False,
    ) -> None:
        """`folder` becomes the working directory, where cores go. `time_limit`, in seconds, is for all of the run."""
        self.words = [str(word) for word in words]
        self.folder = folder
        self.deadline = time.monotonic() + time_limit
        self._output = b""
        self._read = 0
        self._errors = folder / f"errors.{time.monotonic_ns()}"
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                self.words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if merge_errors else errors,
                cwd=folder,
                env={**os.environ, **environment} if environment else None,
                process_group=0,
                bufsize=0,
            )
        with contextlib.suppress(ProcessLookupError):
            limit = resource.RLIM_INFINITY
            resource.prlimit(self.pid, resource.RLIMIT_CORE, (limit, limit))

    @property
    def pid(self) -> int:
        return self.process.pid

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Kills the group, if it is still there, and collects the process."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def send(self, line: str = "") -> None:
        """Writes one line to its standard input; no error if it has ended."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(f"{line}\n".encode())

    def close_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def _more(self) -> bool:
        """Reads what there is, or waits for it; False at the end of the output."""
        assert self.process.stdout is not None
        left = self.deadline - time.monotonic()
        if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
            self._fail("the time limit is over")
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        self._output += data
        return bool(data)

    def _fail(self, why: str) -> None:
        text = self._output.decode(errors="replace")
        state = describe_process(self.pid)
        pytest.fail(f"{' '.join(self.words)}: {why}\n{state}\noutput so far:\n{text}", pytrace=False)

    def expect(self, line: str) -> None:
        """Reads until a whole line equals `line`; fails the test if the output ends or time is over."""
        wanted = line.encode()
        while True:
            end = self._output.find(b"\n", self._read)
            if end >= 0:
                found, self._read = self._output[self._read : end], end + 1
                if found == wanted:
                    return
            elif not self._more():
                self._fail(f"it ended with {self.process.wait()} before it printed {line!r}")

    def lines(self) -> list[str]:
        """The lines that `expect` has passed, in order."""
        return self._output[: self._read].decode(errors="replace").splitlines()

    def finish(self) -> Outcome:
        """Waits for the end of its output and of the process."""
        while self._more():
            pass
        try:
            status = self.process.wait(max(self.deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            self._fail("its output ended, but the process did not")
            raise
        crash = describe_core(Path(self.words[0]), self.folder, self.pid) if status < 0 else ""
        errors = self._errors.read_text(errors="replace")
        return Outcome(self._output.decode(errors="replace"), errors, status, crash)


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Holds a process with SIGSTOP for the time of the `with`."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
