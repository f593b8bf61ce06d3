"""A way out of a deadlock in the kernel: an execve waits until all other threads of its process are gone; one
that is traced goes when its tracer has waited for it; and the request to trace one more thread of that
process waits for the execve.

So while the tracing thread makes such requests another one waits for those that died.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sidestep.target.process import ptrace

PAUSE = 0.01  # seconds after which such a request is taken to hang; nothing is lost where it does not


class Rescue:
    """The thread that waits for the dead. It sleeps while nobody attaches."""

    def __init__(self) -> None:
        self._attaching: dict[int, Mapping[int, int]] = {}  # by the tracing thread
        self._begin = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    @contextmanager
    def attaching(self, process_of: Mapping[int, int]) -> Iterator[None]:
        """While the calling thread attaches; `process_of` has the threads it traces already, and may grow."""
        with self._starting:
            if self._thread is None or not self._thread.is_alive():  # in a child of fork it is not
                self._thread = threading.Thread(target=self._serve, name="sidestep-rescue", daemon=True)
                self._thread.start()
        me = threading.get_ident()
        self._attaching[me] = process_of
        self._begin.set()
        try:
            yield
        finally:
            del self._attaching[me]

    def _serve(self) -> None:
        while self._begin.wait():
            self._begin.clear()
            time.sleep(PAUSE)
            while hanging := list(self._attaching.values()):
                for process_of in hanging:
                    for tid, process in list(process_of.items()):
                        if tid != process:  # for the first thread execve does not wait so
                            ptrace.reap(tid)
                time.sleep(PAUSE)


rescue = Rescue()
# Who attaches in the parent does not in its child.
os.register_at_fork(after_in_child=rescue.__init__)  # type: ignore[misc]
