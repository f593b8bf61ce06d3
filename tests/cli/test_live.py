"""The live table on a terminal: drawn in place, cut to its width, taken away for the final one."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from cli.conftest import ENVIRONMENT, SIDESTEP
from harness.running import Running
from harness.untouched import read_state, remains

pytestmark = pytest.mark.process

ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(slots=True)
class Terminal:
    """A process on a terminal of its own, as its session leader."""

    process: subprocess.Popen[bytes]
    descriptor: int
    shown: str = ""

    def read_until(self, text: str, times: int = 1) -> None:
        deadline = time.monotonic() + 20.0
        while self.shown.count(text) < times:
            left = deadline - time.monotonic()
            assert left > 0, self.shown
            if select.select([self.descriptor], [], [], left)[0]:
                self._read()

    def finish(self) -> int:
        deadline = time.monotonic() + 20.0
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.shown
            if select.select([self.descriptor], [], [], 0.05)[0]:
                self._read()
        while select.select([self.descriptor], [], [], 0)[0] and self._read():
            pass
        return self.process.returncode

    def type(self, text: str) -> None:
        os.write(self.descriptor, text.encode())

    def _read(self) -> bool:
        try:
            data = os.read(self.descriptor, 1 << 16)
        except OSError:  # Linux says EIO when nobody has the other end open any more
            return False
        self.shown += data.decode()
        return bool(data)


@pytest.fixture
def terminal(ticking: Running) -> Iterator[Terminal]:
    """`sidestep count` of the ticking program, on a terminal of 36 columns and 8 lines."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 8, 36, 0, 0))
    environment = {**os.environ, **ENVIRONMENT, "TERM": "xterm"}
    del environment["COLUMNS"]
    probes = ["tick", "libc:poll", "libc:*alloc*"]
    # As the terminal's session leader, so that ^C is a signal.
    words = ["setsid", "--ctty", "--wait", *SIDESTEP, "count", "-p", str(ticking.pid), "--interval", "0.1"]
    process = subprocess.Popen(
        [*words, *probes],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=environment,
    )
    os.close(terminal)
    try:
        yield Terminal(process, controller)
    finally:
        process.kill()
        process.wait()
        os.close(controller)


def test_live(terminal: Terminal, ticking: Running) -> None:
    before = read_state(ticking.pid)
    for number in range(1, 4):
        terminal.read_until("HITS", number)
    terminal.type("\x03")
    assert terminal.finish() == 0
    live, _, final = terminal.shown.rpartition("\x1b[J")
    frames = live.split("HITS")
    assert len(frames) > 3
    # Every carriage return begins a line anew: that of the progress, on a slow machine, and of the table.
    for line in re.split(r"[\r\n]+", ESCAPE.sub("", live).replace("^C", "")):
        assert len(line) <= 36, line
    assert "tick" in live
    assert "HITS" in final
    assert "tick" in final
    assert ESCAPE.search(final) is None
    assert all(len(line) <= 36 for line in final.splitlines())
    assert remains(before, read_state(ticking.pid)) == []
