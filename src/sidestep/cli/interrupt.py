"""Signals that ask to end: they set a flag, and the run in progress restores the target and says what it saw.

Nothing is raised from a signal handler, so no signal, however many come, can break into the restoring.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from types import FrameType
from typing import Any, Final

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class InterruptedEarlyError(Exception):
    """A signal came before there was anything to show."""


class Interrupt:
    """While its `with` lasts, the first of ENDING is kept in `signal`; later ones are only counted.

    A signal that was ignored at the start (a shell's `nohup`, or `&` in a script) stays ignored.
    To be used in the main thread.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.count = 0
        self._previous: dict[int, Any] = {}
        self._is_last = False

    def __enter__(self) -> Interrupt:
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._handle)
        # Whichever thread the kernel gives a signal to: the pipe wakes the main thread out of `wait`.
        self._wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_IGN if self._is_last else handler)
        self._previous.clear()
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._reader)
        os.close(self._writer)

    def is_last(self) -> None:
        """The process ends when the `with` does: signals that come later must not change its exit code."""
        self._is_last = True

    @property
    def requested(self) -> bool:
        """Whether the run shall end."""
        return self.signal is not None

    def check(self) -> None:
        """Raises InterruptedEarlyError if the run shall end. For long work that has changed nothing yet."""
        if self.requested:
            raise InterruptedEarlyError

    def wait(self, seconds: float | None, *descriptors: int) -> bool:
        """Sleeps until a signal has come (then True), a descriptor is readable, or the time is over."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self.requested:
            left = None if deadline is None else max(deadline - time.monotonic(), 0)
            ready = select.select([self._reader, *descriptors], [], [], left)[0]
            if self._reader not in ready:
                break
            self._drain()
        return self.requested

    def rearm(self) -> None:
        """Forgets the signal, so that the next one is a first one again."""
        self.signal = None
        self._drain()

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._reader, 4096):
                pass

    def _handle(self, number: int, _: FrameType | None) -> None:
        self.count += 1
        if self.signal is None:
            self.signal = number
