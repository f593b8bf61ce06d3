"""Stack traces, each kept once."""

from __future__ import annotations

from sidestep.compiler.integers import u64
from sidestep.compiler.intrinsics import load, store, walk
from sidestep.compiler.machine import LONGEST_WALK
from sidestep.handlers.base import Map
from sidestep.handlers.table import KEY, MIXER, Table


class Stacks(Table):
    """Stack traces by an id that a handler gets from `id()`: a key for a Hash, or a field of an event.

    A trace is the probepoint, at a function's entry its caller, and then what the frame pointers lead to:
    `depth` addresses at most. A new trace that finds no room is counted in `drops`; its id stays unknown.
    """

    native_methods = ("id",)

    def __init__(self, capacity: int = 1024, depth: int = LONGEST_WALK) -> None:
        if not 0 < depth <= LONGEST_WALK:
            raise ValueError(f"depth is 1 to {LONGEST_WALK}, not {depth}")
        self.depth = depth
        super().__init__(capacity, 1 + depth, wide=True, compared=1)

    def id(self) -> u64:
        """The id of the stack as it is now."""
        trace = walk()
        mixed = u64(0xCBF29CE484222325)
        for number in range(u64(self.depth)):
            mixed = (mixed ^ load(trace + 8 + number * 8)) * MIXER
            mixed ^= mixed >> 29
        key = mixed | 1
        store(trace, key)
        mixed = self.mixed(trace)
        self.enter(self.bucket(mixed), self.start(mixed), trace)
        return key

    def frames(self, key: int) -> list[int]:
        """The addresses of a trace, the probepoint first; empty for an id that is not known."""
        with self.here() as memory:
            mixed = self.mixed(trace := u64(memory.keep(0, (int(key),))))
            bucket = self.bucket(mixed)
            incarnation = self.find(bucket, self.start(mixed), trace)
            place = self.place(bucket, incarnation) + KEY + 8
            words = [memory.load(place + 8 * number) for number in range(self.depth)] if incarnation else []
        return [address for address in words if address]  # nothing is ever taken out of this table

    def to_dict(self) -> dict[int, list[int]]:
        """All traces by id."""
        return {entry.key[0]: [address for address in entry.key[1:] if address] for entry in self.entries()}

    def reset(self) -> None:
        """Only the drops: the traces stay, and so do their ids."""
        Map.reset(self)
