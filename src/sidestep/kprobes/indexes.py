"""The indexes of a session's counters: who has which."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from sidestep import errors
from sidestep.errors import ProbeError
from sidestep.events import layout


class Indexes:
    """Gives out the indexes of counters and takes them back."""

    def __init__(self) -> None:
        self.highest = 0  # one more than the highest that was ever given out
        self._free: list[int] = []

    def take(self) -> int:
        """An index; raises ProbeError TOO_MANY_PROBES."""
        return self._free.pop() if self._free else self.take_row(1)

    def take_row(self, count: int) -> int:
        """The first of so many in a row, which nobody had before."""
        if self.highest + count > layout.PROBE_CAPACITY:
            raise ProbeError("kprobe", errors.TOO_MANY_PROBES, f"{layout.PROBE_CAPACITY} counters")
        self.highest += count
        return self.highest - count

    @contextmanager
    def taken(self, count: int) -> Iterator[list[int]]:
        """Some indexes, given back if the `with` fails."""
        taken: list[int] = []
        try:
            taken += (self.take() for _ in range(count))
            yield taken
        except BaseException:
            self._free += reversed(taken)
            raise

    def give_back(self, indexes: Iterable[int]) -> None:
        """Their counters are zero again."""
        self._free += reversed([*indexes])
