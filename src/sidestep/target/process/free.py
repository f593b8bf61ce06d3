"""The free places of an arena: the largest is used first, neighbours are merged."""

from __future__ import annotations

from bisect import bisect_left, insort

from sidestep.address import Range


class FreePlaces:
    """Ranges of addresses, none touching another."""

    def __init__(self) -> None:
        self._by_size: list[tuple[int, int]] = []  # (size, start), sorted
        self._ends: dict[int, int] = {}  # by start
        self._starts: dict[int, int] = {}  # by end

    def __len__(self) -> int:
        return len(self._by_size)

    @property
    def largest(self) -> Range | None:
        """The largest place."""
        if not self._by_size:
            return None
        size, start = self._by_size[-1]
        return Range(start, start + size)

    def put(self, span: Range) -> None:
        """Make bytes free that are not."""
        start, end = span
        if start in self._starts:
            start = self._starts[start]
            self._remove(start)
        if end in self._ends:
            end = self._remove(end)
        self._ends[start], self._starts[end] = end, start
        insort(self._by_size, (end - start, start))

    def take(self, size: int) -> None:
        """Use the first bytes of the largest place."""
        whole = self.largest
        assert whole is not None
        assert size <= whole.size
        self._remove(whole.start)
        if size < whole.size:
            self.put(Range(whole.start + size, whole.end))

    def _remove(self, start: int) -> int:
        """Forget a place; its end."""
        end = self._ends.pop(start)
        del self._starts[end]
        del self._by_size[bisect_left(self._by_size, (end - start, start))]
        return end
