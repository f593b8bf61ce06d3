"""The compiler's process: started when first needed, one request at a time."""

from __future__ import annotations

import atexit
import os
import select
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import IO

from sidestep import errors
from sidestep.compiler import llvm
from sidestep.compiler.llvm import LENGTH, OK
from sidestep.errors import ProbeError

LONGEST = 60.0  # seconds for one request


class Helper:
    """LLVM in a process of its own, whose end is an error of one request, as is taking longer than `longest`
    seconds."""

    def __init__(self, longest: float = LONGEST) -> None:
        self._longest = longest
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def compile(self, text: str) -> bytes:
        """The object file of LLVM text. Raises ProbeError COMPILER_FAILED."""
        with self._lock:
            process = self._started()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                answer = self._ask(process.stdin, process.stdout, text.encode())
            except BaseException:  # the rest of the answer is not for the next request
                process.kill()
                self._stop()
                raise
            if answer is None:
                process.kill()
                self._stop()
                detail = "its process ended, or took too long (an internal error)"
                raise ProbeError("native handler", errors.COMPILER_FAILED, detail)
        if answer[:1] != OK:
            raise ProbeError("native handler", errors.COMPILER_FAILED, answer[1:].decode(errors="replace"))
        return answer[1:]

    def _ask(self, requests: IO[bytes], answers: IO[bytes], raw: bytes) -> bytes | None:
        """The answer; None if the process ended, or the time, before it was complete."""
        deadline = time.monotonic() + self._longest
        os.set_blocking(requests.fileno(), False)
        request = memoryview(LENGTH.pack(len(raw)) + raw)
        try:
            while request:
                if not _ready(requests, select.POLLOUT, deadline):
                    return None
                request = request[os.write(requests.fileno(), request) :]
        except BrokenPipeError:
            return None
        head = _read(answers, LENGTH.size, deadline)
        answer = None if head is None else _read(answers, LENGTH.unpack(head)[0], deadline)
        return answer or None

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            # As a file, since a module would import all of the package; -P: none of its neighbours by name.
            command = [sys.executable, "-P", llvm.__file__]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True
            )
            atexit.register(self._stop)
        return self._process

    def _stop(self) -> None:
        if self._process is not None:
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    with suppress(BrokenPipeError):  # what was not read any more
                        stream.close()
            self._process.wait()
            self._process = None
            atexit.unregister(self._stop)


def _ready(stream: IO[bytes], events: int, deadline: float) -> bool:
    """Whether something can be done, or is over, before the deadline."""
    poll = select.poll()
    poll.register(stream, events)
    return bool(poll.poll(max(deadline - time.monotonic(), 0) * 1e3))


def _read(stream: IO[bytes], size: int, deadline: float) -> bytes | None:
    """So many bytes; None if there are not so many, or not before the deadline."""
    found = bytearray()
    while len(found) < size:
        chunk = (
            os.read(stream.fileno(), size - len(found)) if _ready(stream, select.POLLIN, deadline) else b""
        )
        if not chunk:
            return None
        found += chunk
    return bytes(found)


HELPER = Helper()
