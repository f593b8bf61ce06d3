"""Counters of processes that have ended: who forks for ever does not make the controller grow."""

from __future__ import annotations

from collections.abc import Mapping, Set

MOST_PAIRS = 1 << 17  # of a process and a counter, about 20 MB
NOBODY = 0  # the pid that the oldest are added to


class Retired:
    """Counters by index and pid. Beyond `most_pairs` the processes that ended first are added up under pid
    0."""

    def __init__(self, maxima: Set[int], most_pairs: int = MOST_PAIRS) -> None:
        """`maxima` are the indexes that hold maxima, not counts."""
        self._maxima, self._most_pairs = maxima, most_pairs
        self._by_index: dict[int, dict[int, int]] = {}
        self._indexes: dict[int, list[int]] = {}  # by pid, who ended first comes first
        self._pairs = 0

    def add(self, pid: int, cells: Mapping[int, int]) -> None:
        """What a process has counted, by index."""
        found = self._indexes.setdefault(pid, [])
        for index, value in cells.items():
            if self._put(pid, index, value):
                found.append(index)
        while self._pairs > self._most_pairs and (oldest := self._oldest()) is not None:
            for index in self._indexes.pop(oldest):
                moved = self._by_index.get(index, {}).pop(oldest, None)
                if moved is not None:
                    self._pairs -= 1
                    self._put(NOBODY, index, moved)

    def _oldest(self) -> int | None:
        return next((pid for pid in self._indexes if pid != NOBODY), None)

    def _put(self, pid: int, index: int, value: int) -> bool:
        """Whether the pair is new."""
        by_pid = self._by_index.setdefault(index, {})
        before = by_pid.get(pid)
        if before is None:
            self._pairs += pid != NOBODY
            by_pid[pid] = value
        else:
            by_pid[pid] = max(before, value) if index in self._maxima else before + value
        return before is None

    def by_pid(self, index: int) -> Mapping[int, int]:
        return self._by_index.get(index, {})

    def totals(self) -> dict[int, int]:
        """All counts, by index."""
        return {index: sum(by_pid.values()) for index, by_pid in self._by_index.items()}

    def clear(self, index: int) -> None:
        """Forget a counter."""
        self._pairs -= len(self._by_index.pop(index, {}).keys() - {NOBODY})
