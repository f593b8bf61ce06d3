"""Stack traces, each kept once."""

from __future__ import annotations

from sidestep.compiler.integers import u64
from sidestep.compiler.intrinsics import LONGEST_WALK, cell_add, exchange_if, frame, load, store, walk
from sidestep.handlers.base import PROBES, Map

LARGEST_CAPACITY = 1 << 18


class Stacks(Map):
    """Stack traces by an id that a handler gets from `id()`: a key for a Hash, or a field of an event.

    A trace is the probepoint, at a function's entry its caller, and then what the frame pointers lead to:
    `depth` addresses at most. A new trace that finds no room is counted in `drops`; its id stays unknown.
    """

    native_methods = ("id",)

    def __init__(self, capacity: int = 1024, depth: int = LONGEST_WALK) -> None:
        if not 0 < depth <= LONGEST_WALK:
            raise ValueError(f"depth is 1 to {LONGEST_WALK}, not {depth}")
        if not 0 < capacity <= LARGEST_CAPACITY:
            raise ValueError(f"the capacity is 1 to {LARGEST_CAPACITY}, not {capacity}")
        slots = 1 << max(3, (capacity - 1).bit_length())
        self.depth, self.words_each = depth, 1 + depth
        super().__init__(cell_count=1, word_count=slots * self.words_each)
        self.slots, self.mask = slots, slots - 1
        self.probes = min(slots, PROBES)

    def id(self) -> u64:
        """The id of the stack as it is now."""
        walk()
        key = u64(0xCBF29CE484222325)
        for number in range(u64(self.depth)):
            key = (key ^ frame(number)) * 0x9E3779B97F4A7C15
            key ^= key >> 29
        key |= 1
        index = (key >> 20) & self.mask
        for _ in range(self.probes):
            place = self.base + index * (8 * self.words_each)
            found = load(place)
            if found == 0:
                found = exchange_if(place, 0, key)
                if found == 0:
                    for number in range(u64(self.depth)):
                        store(place + 8 + number * 8, frame(number))
                    return key
            if found == key:
                return key
            index = (index + 1) & self.mask
        cell_add(self.cells, 1)
        return key

    def frames(self, key: int) -> list[int]:
        """The addresses of a trace, the probepoint first; empty for an id that is not known."""
        return self.to_dict().get(int(key), [])

    @property
    def drops(self) -> int:
        """Traces that found no room, each time."""
        return self.sums()[0]

    def to_dict(self) -> dict[int, list[int]]:
        """All traces by id."""
        words = self.words(0, self.word_count)
        found = {}
        for at in range(0, len(words), self.words_each):
            if words[at]:
                trace = words[at + 1 : at + self.words_each]
                found[words[at]] = [address for address in trace if address]
        return found

    def reset(self) -> None:
        """Only the drops: the traces stay, and so do their ids."""
        super().reset()
