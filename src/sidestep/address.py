"""Small types for addresses: half-open ranges."""

from __future__ import annotations

from typing import NamedTuple

PAGE = 4096  # bytes


class Range(NamedTuple):
    """Addresses from `start` up to, not including, `end`."""

    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start

    def __contains__(self, address: object) -> bool:
        return isinstance(address, int) and self.start <= address < self.end

    def covers(self, other: Range) -> bool:
        return self.start <= other.start and other.end <= self.end

    def overlaps(self, other: Range) -> bool:
        return self.start < other.end and other.start < self.end

    def __str__(self) -> str:
        return f"{self.start:#x}-{self.end:#x}"
