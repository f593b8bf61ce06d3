"""Histograms, and their picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sidestep.compiler.integers import u64
from sidestep.compiler.intrinsics import bit_length, cell_add
from sidestep.handlers.arrow import table
from sidestep.handlers.base import Map

LARGEST = 4096  # buckets
WIDTH = 52  # columns of the bars
UNITS = "KMGTPE"


@dataclass(frozen=True, slots=True)
class Bucket:
    """Values from `low` to below `high`; None: without a bound."""

    low: int | None
    high: int | None
    count: int


class Histogram(Map):
    """How often values were in which range. By powers of two, or with `linear=(low, high, step)` by steps."""

    native_methods = ("add", "add_by_steps")

    def __init__(self, linear: tuple[int, int, int] | None = None) -> None:
        self.linear = linear
        if linear is None:
            super().__init__(cell_count=65)
            self.low = self.high = 0
            self.step = 1
            self.by_steps = False
            return
        self.low, self.high, self.step = linear
        if not (0 <= self.low < self.high < 1 << 64 and self.step > 0):
            raise ValueError(f"linear={linear}: low, high and step with 0 <= low < high and step > 0")
        self.by_steps = True
        self.high = self.low + -(-(self.high - self.low) // self.step) * self.step
        count = (self.high - self.low) // self.step + 2
        if count > LARGEST:
            raise ValueError(f"linear={linear} has {count} buckets, {LARGEST} at most")
        super().__init__(cell_count=count)

    def add(self, value: u64) -> None:
        """Add a value (from a handler)."""
        if self.by_steps:
            self.add_by_steps(value)
        else:
            cell_add(self.cells + bit_length(value), 1)

    def add_by_steps(self, value: u64) -> None:
        if value < self.low:
            cell_add(self.cells, 1)
        elif value >= self.high:
            cell_add(self.cells + (self.cell_count - 1), 1)
        else:
            cell_add(self.cells + (value - self.low) // self.step + 1, 1)

    @property
    def buckets(self) -> list[Bucket]:
        """All buckets from the first to the last that has a value."""
        counts = self.sums()
        bounds = self._steps(len(counts)) if self.by_steps else _powers(len(counts))
        found = [Bucket(low, high, count) for (low, high), count in zip(bounds, counts, strict=True)]
        used = [index for index, bucket in enumerate(found) if bucket.count]
        return found[used[0] : used[-1] + 1] if used else []

    def _steps(self, count: int) -> list[tuple[int | None, int | None]]:
        edges = [self.low + self.step * number for number in range(count - 1)]
        return list(zip([None, *edges], [*edges, None], strict=True))

    @property
    def count(self) -> int:
        return sum(self.sums())

    def to_dict(self) -> dict[str, int]:
        """The counts by the ranges' names, as the picture has them."""
        return {_name(bucket): bucket.count for bucket in self.buckets}

    def to_arrow(self) -> Any:
        """A table of low, high (None: without a bound) and count."""
        found = self.buckets
        return table(
            {
                "low": [bucket.low for bucket in found],
                "high": [bucket.high for bucket in found],
                "count": [bucket.count for bucket in found],
            }
        )

    def __str__(self) -> str:
        return draw(self.buckets)


def _powers(count: int) -> list[tuple[int | None, int | None]]:
    return [(0, 1), *((1 << bits, 2 << bits) for bits in range(count - 1))]


def _name(bucket: Bucket) -> str:
    if bucket.low is None:
        return f"(..., {_short(bucket.high or 0)})"
    if bucket.high is None:
        return f"[{_short(bucket.low)}, ...)"
    if bucket.high == bucket.low + 1:
        return f"[{_short(bucket.low)}]"
    return f"[{_short(bucket.low)}, {_short(bucket.high)})"


def _short(number: int) -> str:
    """1048576 is 1M."""
    unit = ""
    for letter in UNITS:
        if number < 1024 or number % 1024:
            break
        number, unit = number // 1024, letter
    return f"{number}{unit}"


def draw(buckets: Sequence[Bucket]) -> str:
    """A line with a bar for each bucket."""
    most = max((bucket.count for bucket in buckets), default=0)
    lines = []
    for bucket in buckets:
        bar = "@" * round(WIDTH * bucket.count / most) if most else ""
        lines.append(f"{_name(bucket):<20} {bucket.count:>12} |{bar:<{WIDTH}}|")
    return "\n".join(lines)
