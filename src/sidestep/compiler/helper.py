"""The compiler's process: started when first needed, one request at a time."""

from __future__ import annotations

import atexit
import subprocess
import sys
import threading
from contextlib import suppress
from typing import IO

from sidestep import errors
from sidestep.compiler import llvm
from sidestep.compiler.llvm import LENGTH, OK
from sidestep.errors import ProbeError


class Helper:
    """LLVM in a process of its own, whose end is an error of one request."""

    def __init__(self) -> None:
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
                self._stop()
                detail = "its process ended (an internal error)"
                raise ProbeError("native handler", errors.COMPILER_FAILED, detail)
        if answer[:1] != OK:
            raise ProbeError("native handler", errors.COMPILER_FAILED, answer[1:].decode(errors="replace"))
        return answer[1:]

    @staticmethod
    def _ask(requests: IO[bytes], answers: IO[bytes], raw: bytes) -> bytes | None:
        """The answer; None if the process ended before it was complete."""
        try:
            requests.write(LENGTH.pack(len(raw)) + raw)
            requests.flush()
        except BrokenPipeError:
            return None
        head = answers.read(LENGTH.size)
        if len(head) != LENGTH.size:
            return None
        (size,) = LENGTH.unpack(head)
        answer = answers.read(size)
        return answer if answer and len(answer) == size else None

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            # As a file, since a module would import all of the package; -P: none of its neighbours by name.
            command = [sys.executable, "-P", llvm.__file__]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
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


HELPER = Helper()
