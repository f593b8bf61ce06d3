"""A part of a terminal that is drawn again and again in place."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TextIO

from sidestep.cli.output import is_terminal, reader_may_leave, terminal_size


class Screen:
    """Lines at the cursor that replace each other. Nothing is drawn where `live` is False."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._height = 0
        self.live = is_terminal(stream) and os.environ.get("TERM", "dumb") != "dumb"

    @property
    def width(self) -> int:
        return terminal_size(self._stream).columns - 1

    @property
    def height(self) -> int:
        """The most lines that can be drawn without scrolling."""
        return max(terminal_size(self._stream).lines - 1, 2)

    def draw(self, lines: Sequence[str]) -> None:
        """Replaces what was drawn before. No line may be wider than `width`."""
        if not self.live:
            return
        shown = list(lines[: self.height])
        self._write(self._up() + "".join(f"{line}\x1b[K\n" for line in shown) + "\x1b[J")
        self._height = len(shown)

    def clear(self) -> None:
        """Takes away what was drawn; the cursor is where it was before."""
        if self._height:
            self._write(f"{self._up()}\x1b[J")
            self._height = 0

    def _up(self) -> str:
        return f"\r\x1b[{self._height}A" if self._height else "\r"

    def _write(self, text: str) -> None:
        with reader_may_leave(self._stream):
            self._stream.write(text)
            self._stream.flush()
