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
from sidestep.uninterrupted import uninterrupted

SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)

_restorers: dict[Callable[[], None], int] = {}
"""What is to be called, and the process that asked for it: not one that it forked."""


def restore_at_end(restore: Callable[[], None]) -> None:
    """Call `restore` at the end of this process, until it is given to `forget`."""
    if not _restorers:
        atexit.register(_restore_all)
    _restorers[restore] = os.getpid()
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _end)


def forget(restore: Callable[[], None]) -> None:
    _restorers.pop(restore, None)
    if _restorers:
        return
    atexit.unregister(_restore_all)
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            if signal.getsignal(number) is _end:
                signal.signal(number, signal.SIG_DFL)


def _restore_all() -> None:
    for restore, owner in list(_restorers.items()):
        if owner == os.getpid():
            try:
                restore()
            except (SidestepError, OSError) as error:
                print(f"sidestep: {error}", file=sys.stderr)


def _end(number: int, _: FrameType | None) -> None:
    """Restore the targets, then end by the signal as if nobody had handled it."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    try:
        uninterrupted(lambda: None)  # what is being changed is changed first
        _restore_all()
    finally:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
