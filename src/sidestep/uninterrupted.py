"""Work that Ctrl-C does not break off: a change of a target and what is known of it stay together."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")
_one_at_a_time = threading.Lock()


def uninterrupted(function: Callable[[], T]) -> T:
    """The result of `function`, which runs to its end whatever signals come.

    Python runs signal handlers, which may raise KeyboardInterrupt or anything else, in its main thread only.
    So there the work is done by another thread, and what a handler raised is raised when it is done. The
    function must not take a lock that its caller may hold.
    """
    if threading.current_thread() is not threading.main_thread():
        return function()
    future: Future[T] = Future()
    worker = threading.Thread(target=_work, args=(function, future), name="sidestep-change", daemon=True)
    try:
        worker.start()
        return future.result()
    except BaseException:
        # Either it never begins, or it is waited for.
        while not future.done() and not future.cancel():
            with contextlib.suppress(BaseException):
                wait([future])
        raise


def _work(function: Callable[[], T], future: Future[T]) -> None:
    # A signal handler may ask for work while the main thread waits for work.
    with _one_at_a_time:
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)
