"""A thread that now and then gives the counter blocks of processes that have ended to others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

INTERVAL = 0.1  # seconds


class Lock(Protocol):
    """What a lock of threading has."""

    def acquire(self, blocking: bool = ...) -> bool: ...
    def release(self) -> None: ...


class Keeper:
    """Calls `work` now and then while nobody has the lock. `failure` is what ended it, if anything did."""

    def __init__(self, lock: Lock, work: Callable[[], None]) -> None:
        self._lock, self._work = lock, work
        self.failure: Exception | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="sidestep-keeper", daemon=True)
        self._thread.start()

    def _keep(self) -> None:
        while not self._closing.wait(INTERVAL):
            if not self._lock.acquire(blocking=False):
                continue  # whoever has it may wait for this thread in `close`
            try:
                if not self._closing.is_set():
                    self._work()
            except Exception as error:
                self.failure = error
                return
            finally:
                self._lock.release()

    def close(self) -> None:
        """Ends it."""
        self._closing.set()
        self._thread.join()
