"""Free places against a set of bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sidestep.address import Range
from sidestep.target.process.free import FreePlaces

SIZE = 256


@given(st.lists(st.tuples(st.booleans(), st.integers(0, SIZE - 1), st.integers(1, 40))))
def test_against_a_set(steps: list[tuple[bool, int, int]]) -> None:
    places, free = FreePlaces(), set[int]()
    for put, start, size in steps:
        if put:
            span = Range(start, min(start + size, SIZE))
            if not free.isdisjoint(range(*span)):
                continue
            places.put(span)
            free.update(range(*span))
        elif (largest := places.largest) is not None and size <= largest.size:
            places.take(size)
            free -= set(range(largest.start, largest.start + size))
        runs = _runs(free)
        assert len(places) == len(runs)
        assert places.largest == max(runs, key=lambda run: (run.size, run.start), default=None)


def _runs(free: set[int]) -> list[Range]:
    starts = [byte for byte in sorted(free) if byte - 1 not in free]
    ends = [byte + 1 for byte in sorted(free) if byte + 1 not in free]
    return [Range(start, end) for start, end in zip(starts, ends, strict=True)]
