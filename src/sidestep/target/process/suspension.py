"""Ctrl-Z at the controller (SIGTSTP) waits until no target is stopped: else that would stand still as well.

Only where the signal would have its default action, and where a target comes in Python's main thread. SIGSTOP
cannot be held off.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Suspension:
    """Counts targets, and the windows in which one is stopped."""

    def __init__(self) -> None:
        self._targets = self._windows = 0
        # Of tracing threads, and of the handler, which runs in the main thread.
        self._quiet = threading.Condition()

    def target_comes(self) -> None:
        """Have the signal wait for windows from now on."""
        self._targets += 1
        if _is_main_thread() and signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
            signal.signal(signal.SIGTSTP, self._stop_when_quiet)

    def target_goes(self) -> None:
        """With the last target the signal has its default action again."""
        self._targets -= 1
        is_ours = signal.getsignal(signal.SIGTSTP) == self._stop_when_quiet
        if not self._targets and _is_main_thread() and is_ours:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)

    @contextmanager
    def window(self) -> Iterator[None]:
        """A time in which a target is stopped. Not in the main thread."""
        with self._quiet:
            self._windows += 1
        try:
            yield
        finally:
            with self._quiet:
                self._windows -= 1
                self._quiet.notify_all()

    def _stop_when_quiet(self, number: int, _: FrameType | None) -> None:
        with self._quiet:
            self._quiet.wait_for(lambda: not self._windows)
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)  # here the process stands until it is continued
            signal.signal(number, self._stop_when_quiet)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


suspension = Suspension()
