"""Runs programs in process groups of their own, with a time limit, and says how they ended badly."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

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


class Started(Protocol):
    """A process that was started: by subprocess, or by the product."""

    @property
    def pid(self) -> int: ...
    def wait(self, timeout: float | None = None) -> int | None:
        """The exit code, or minus the signal's number; None (or TimeoutExpired) when the time is over."""


Starter = Callable[..., Started]


def start_plainly(words: Sequence[str], **options: object) -> Started:
    return subprocess.Popen(words, process_group=0, **options)  # type: ignore[call-overload,no-any-return]


class Running:
    """A process that runs, its input and output in pipes; the `with` ends by killing its group."""

    def __init__(
        self,
        words: Sequence[str | Path],
        *,
        folder: Path,
        time_limit: float = TIME_LIMIT,
        environment: Mapping[str, str] | None = None,
        start: Starter = start_plainly,
    ) -> None:
        """`folder` becomes the working directory, where cores go; `time_limit` is in seconds for all of it.

        `start(words, stdin=, stdout=, stderr=, cwd=, env=)` starts the process.
        """
        self.words = [str(word) for word in words]
        self.folder = folder
        self.deadline = time.monotonic() + time_limit
        self._unread, self._ended = b"", False
        self._lines: list[str] = []
        self._errors = folder / f"errors.{time.monotonic_ns()}"
        input_end, self._input = os.pipe()
        self._output, output_end = os.pipe()
        with self._errors.open("wb") as errors:
            try:
                self.process = start(
                    self.words,
                    stdin=input_end,
                    stdout=output_end,
                    stderr=errors.fileno(),
                    cwd=str(folder),
                    env={**os.environ, **(environment or {})},
                )
            finally:
                os.close(input_end)
                os.close(output_end)
        with contextlib.suppress(ProcessLookupError, PermissionError):  # ended, or another user's
            limit = resource.RLIM_INFINITY
            resource.prlimit(self.pid, resource.RLIMIT_CORE, (limit, limit))

    @property
    def pid(self) -> int:
        return self.process.pid

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        for kill, number in ((os.killpg, self.pid), (os.kill, self.pid)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(number, signal.SIGKILL)
        self.process.wait()
        self.close_input()
        os.close(self._output)

    def send(self, line: str = "") -> None:
        """Writes one line to its standard input; no error if it has ended."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._input, f"{line}\n".encode())

    def close_input(self) -> None:
        if self._input >= 0:
            os.close(self._input)
            self._input = -1

    @property
    def lines(self) -> list[str]:
        """The lines of its output that were read up to now."""
        return list(self._lines)

    def next_line(self, patience: float | None = None) -> str | None:
        """The next line of its output, "" if `patience` (seconds) ends before it comes, None at the end.

        Fails the test when the time limit is over.
        """
        give_up = self.deadline if patience is None else time.monotonic() + patience
        while b"\n" not in self._unread and not self._ended:
            left = max(min(give_up, self.deadline) - time.monotonic(), 0)
            if not select.select([self._output], [], [], left)[0]:
                if patience is not None and time.monotonic() < self.deadline:
                    return ""
                self.fail("the time limit is over")
            data = os.read(self._output, 1 << 16)
            self._unread += data
            self._ended = not data
        if not self._unread:
            return None
        line, _, self._unread = self._unread.partition(b"\n")
        self._lines.append(line.decode(errors="replace"))
        return self._lines[-1]

    def expect(self, line: str) -> None:
        """Reads until a whole line equals `line`; fails the test if none does."""
        while (found := self.next_line()) != line:
            if found is None:
                self.fail(f"its output ended before the line {line!r}")

    def fail(self, why: str) -> None:
        lines = [f"{' '.join(self.words)}: {why}", describe_process(self.pid), "output so far:", *self._lines]
        pytest.fail("\n".join(lines), pytrace=False)

    def finish(self) -> Outcome:
        """Waits for the end of its output and of the process."""
        while self.next_line() is not None:
            pass
        status = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = self.process.wait(max(self.deadline - time.monotonic(), 0.1))
        if status is None:
            self.fail("its output ended, but the process did not")
            raise AssertionError
        crash = describe_core(Path(self.words[0]), self.folder, self.pid) if status < 0 else ""
        return Outcome("\n".join(self._lines), self._errors.read_text(errors="replace"), status, crash)
