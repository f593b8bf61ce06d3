"""A line on a terminal that says how far long work has come."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final

from sidestep.cli.output import is_terminal, terminal_size
from sidestep.symbols.printable import clean

SHOW_AFTER: Final = 0.3
_EVERY: Final = 0.1


class Progress:
    """Called with (what, done, total) in any unit.

    Shows nothing before SHOW_AFTER seconds, and nothing at all where standard error is no terminal. The share
    of a work never goes back, even if more of it turns up. The line is gone when the `with` ends. `check` is
    called each time and may raise, to give the work up.
    """

    def __init__(self, check: Callable[[], None] = lambda: None) -> None:
        self._check = check
        self._next = time.monotonic() + SHOW_AFTER if is_terminal(sys.stderr) else float("inf")
        self._shown = False
        self._shares: dict[str, int] = {}

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def __call__(self, what: str, done: int, total: int) -> None:
        self._check()
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _EVERY
        share = ""
        if total:
            done_by_now = self._shares[what] = max(min(done * 100 // total, 100), self._shares.get(what, 0))
            share = f" {done_by_now:3}%"
        width = terminal_size(sys.stderr).columns
        self._write(f"\r\x1b[K{clean(f'{what} ...{share}')[: width - 1]}")
        self._shown = True

    def clear(self) -> None:
        """Takes the line away, so that something else can be written."""
        if self._shown:
            self._write("\r\x1b[K")
            self._shown = False

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.write(text)
            sys.stderr.flush()
