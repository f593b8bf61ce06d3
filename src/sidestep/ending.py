"""The end of the controller itself: what it has not taken out of its targets by then is taken out.

That is done at the exit of the interpreter, and for the signals whose default action would end the process
without one. A program's own handlers are left alone: one that is there stays, one that comes later replaces
ours.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Final

from sidestep.errors import SidestepError

SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)
PATIENCE: Final = 0.2
"""Seconds that an interrupted program stands still; usually it does not go on at all."""

Restore = Callable[[], None]


class Ending:
    """What is to be restored when this process ends, each with the process that asked for it: not one that
    it forked."""

    def __init__(self) -> None:
        self._owners: dict[Restore, int] = {}
        self._restoring = threading.Lock()
        self._thread: threading.Thread | None = None
        self._restored = False

    def add(self, restore: Restore) -> None:
        """Call `restore` at the end, until it is removed."""
        if not self._owners:
            atexit.register(self._at_exit)
        self._owners[restore] = os.getpid()
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) is signal.SIG_DFL:
                    signal.signal(number, self._at_signal)

    def remove(self, restore: Restore) -> None:
        self._owners.pop(restore, None)
        if self._owners:
            return
        atexit.unregister(self._at_exit)
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) == self._at_signal:
                    signal.signal(number, signal.SIG_DFL)

    def _restore_all(self) -> None:
        with self._restoring:
            for restore, owner in list(self._owners.items()):
                if owner == os.getpid():
                    try:
                        restore()
                    except (SidestepError, OSError) as error:
                        print(f"sidestep: {error}", file=sys.stderr)

    def _at_exit(self) -> None:
        if self._thread is not None:
            self._thread.join()  # its last act is the signal that ends this process
        for number in SIGNALS:
            if signal.getsignal(number) == self._at_signal:
                signal.signal(number, signal.SIG_IGN)
        self._restore_all()

    def _at_signal(self, number: int, _: FrameType | None) -> None:
        """Restore the targets, then end by the signal as if nobody had handled it.

        What the main thread is interrupted in may hold locks that restoring needs: so another thread does it,
        and this one goes on where that takes long.
        """
        if self._restored:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif self._thread is None:
            self._thread = threading.Thread(target=self._restore, args=(number,), daemon=True)
            self._thread.start()
            self._thread.join(PATIENCE)

    def _restore(self, number: int) -> None:
        try:
            self._restore_all()
        finally:
            self._restored = True
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, number)


ending: Final = Ending()
