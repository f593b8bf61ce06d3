"""The text of a stopped process around many places: read at once, changed here, written page by page.

Thousands of jumps take a few hundred system calls so. The bytes between them are written as they were read in
the same stop. One write stays within one page, and is done or not done if the controller is killed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from sidestep.address import PAGE, Range
from sidestep.target.base import Memory


class Text:
    """`places` are those that will be asked for, ascending. Only for as long as the process is stopped."""

    def __init__(self, memory: Memory, places: Sequence[Range]) -> None:
        self._memory = memory
        self._stretches: list[tuple[int, bytearray]] = []
        for stretch, inside in _stretches(places):
            content = memory.read_available(stretch.start, stretch.size)
            if len(content) == stretch.size:
                self._stretches.append((stretch.start, bytearray(content)))
            else:  # there is a hole in it
                for place in inside:
                    content = memory.read_available(place.start, place.size)
                    self._stretches.append((place.start, bytearray(content)))
        self._starts = [start for start, _ in self._stretches]
        self._changed: dict[int, tuple[int, int]] = {}  # by page: from the first changed byte to the last

    def at(self, address: int, size: int) -> bytes:
        """The bytes of one of the places; short where memory ends."""
        start, content = self._stretches[bisect_right(self._starts, address) - 1]
        return bytes(content[address - start : address - start + size])

    def put(self, address: int, data: bytes) -> None:
        """Change bytes of one of the places, here for now. They lie in one page, as every jump does."""
        start, content = self._stretches[bisect_right(self._starts, address) - 1]
        content[address - start : address - start + len(data)] = data
        page, end = address // PAGE, address + len(data)
        first, last = self._changed.get(page, (address, end))
        self._changed[page] = (min(first, address), max(last, end))

    def write(self) -> None:
        """Write what was changed since the last time."""
        for first, last in self._changed.values():
            self._memory.write(first, self.at(first, last - first))
        self._changed.clear()


def _stretches(places: Sequence[Range]) -> list[tuple[Range, list[Range]]]:
    """The places with what lies between them, where that is less than a page."""
    found: list[tuple[Range, list[Range]]] = []
    for place in places:
        if found and place.start - found[-1][0].end < PAGE:
            before, inside = found.pop()
            inside.append(place)
            found.append((Range(before.start, max(before.end, place.end)), inside))
        else:
            found.append((place, [place]))
    return found
