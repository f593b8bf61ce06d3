"""Builds the victim, starts it, asks it for things, and ends it whatever happens."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

HERE = Path(__file__).parent
BUILD = HERE.parent / "build" / "bench"
PATIENCE = 120.0  # seconds for an answer
ALONE = "\0sidestep-bench"  # a socket's name, which the kernel gives to one process at a time

CPUS = sorted(os.sched_getaffinity(0))
VICTIM_CPU = CPUS[0]
OTHER_CPUS = CPUS[1:] or CPUS


def program() -> Path:
    """The victim's executable, built when its source has changed."""
    BUILD.mkdir(parents=True, exist_ok=True)
    source, built = HERE / "victim.c", BUILD / "victim"
    if not built.exists() or built.stat().st_mtime < source.stat().st_mtime:
        words = ["gcc", "-O2", "-g", "-pthread", "-Wall", "-Wextra", str(source), "-o", str(built), "-ldl"]
        subprocess.run(words, check=True)
    return built


def be_alone() -> socket.socket:
    """Hold what is returned while measuring: two measurements at a time would measure each other."""
    held = socket.socket(socket.AF_UNIX)
    try:
        held.bind(ALONE)
    except OSError:
        sys.exit("another measurement is running on this machine")
    return held


def use_other_cpus() -> None:
    """Keep this process, the controller, off the victim's CPU."""
    os.sched_setaffinity(0, OTHER_CPUS)


class Victim:
    """A victim that waits for commands (victim.c lists them). The `with` ends by killing it."""

    def __init__(self, library: Path | None = None, *, pinned: bool = False) -> None:
        words = [str(program()), *([] if library is None else [str(library)])]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self._unread = b""
        self._checksums: dict[tuple[str, int], str] = {}
        os.sched_setaffinity(self.pid, {VICTIM_CPU} if pinned else CPUS)

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Victim:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    # Commands

    def tell(self, *words: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(str(word) for word in words).encode() + b"\n")

    def answer(self, patience: float = PATIENCE) -> list[list[str]]:
        """The words of each line up to "done"."""
        lines = []
        deadline = time.monotonic() + patience
        while (line := self._line(deadline)) != "done":
            lines.append(line.split())
        return lines

    def ask(self, *words: object) -> list[list[str]]:
        self.tell(*words)
        return self.answer()

    def number(self, *words: object) -> int:
        return int(self.ask(*words)[0][0])

    def run(self, function: str, calls: int, batches: int) -> list[float]:
        """Nanoseconds a call, for each batch. The results must be those of the first time."""
        found = []
        for nanoseconds, checksum in self.ask("run", function, calls, batches):
            if self._checksums.setdefault((function, calls), checksum) != checksum:
                raise AssertionError(f"{function} gave other results than before: {checksum}")
            found.append(int(nanoseconds) / calls)
        return found

    def wait_for(self, other: subprocess.Popen[bytes]) -> list[list[str]]:
        """The answer to what was told, which `other` brings about: RuntimeError if that ends before."""
        assert self._process.stdout is not None
        while not select.select([self._process.stdout], [], [], 0.05)[0]:
            if other.poll() is not None:
                raise RuntimeError(f"{other.args!r} ended with status {other.returncode}")
        return self.answer()

    def _line(self, deadline: float) -> str:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._unread:
            if not select.select([descriptor], [], [], max(deadline - time.monotonic(), 0))[0]:
                raise TimeoutError("the victim does not answer")
            data = os.read(descriptor, 1 << 16)
            if not data:
                raise RuntimeError(f"the victim ended with status {self._process.wait()}")
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    # What /proc says

    def memory(self, name: str) -> int:
        """Bytes of its memory that are resident, counted exactly: `Rss`, or `Private_Dirty` and so on."""
        for line in Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) << 10
        raise RuntimeError(f"no {name} in smaps_rollup")


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(f"ended by {signal.Signals(number).name}")


def end_orderly() -> None:
    """On SIGTERM and SIGHUP leave through every `with`, as on Ctrl-C."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
