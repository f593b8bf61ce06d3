"""Maps of numbers: Counter, Array, Hash, PerThread, Stats."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sidestep.compiler.integers import INTEGERS, Integer, u32, u64, wrap
from sidestep.compiler.intrinsics import add, cell_add, cell_max, exchange_if, load, store, tid
from sidestep.handlers.arrow import table
from sidestep.handlers.base import PROBES, Map

LARGEST_WORDS = 1 << 24
SLOT_WORDS = 2


def _check_type(kind: object, what: str) -> None:
    if kind not in INTEGERS:
        raise TypeError(f"{what} is one of u8 .. u64 and i8 .. i64, not {kind!r}")


def _check_size(size: int, limit: int, what: str) -> None:
    if not 0 < size <= limit:
        raise ValueError(f"{what} is 1 to {limit}, not {size}")


class Counter(Map):
    """A number that only grows: `add(n)`. Exact under any number of threads, 1 ns a step."""

    native_methods = ("add",)

    def __init__(self) -> None:
        super().__init__(cell_count=1)

    def add(self, amount: u64 = 1) -> None:  # type: ignore[assignment]
        """Add to it (from a handler)."""
        cell_add(self.cells, amount)

    @property
    def value(self) -> int:
        """The number, modulo 2**64."""
        return self.sums()[0]

    def __int__(self) -> int:
        return self.value

    def __str__(self) -> str:
        return str(self.value)


class Array(Map):
    """`size` numbers, all 0 at first: `array[i]`, `array[i] = n`, `array[i] += n` (in one step). An index
    beyond the end is a fault of the handler."""

    def __init__(self, size: int, value: type[Integer] = u64) -> None:
        _check_type(value, "the value")
        _check_size(size, LARGEST_WORDS, "the size")
        super().__init__(word_count=size)
        self.size, self.key, self.value = size, u64, value

    def native_get(self, index: u64) -> u64:
        assert index < self.size
        return load(self.base + index * 8)

    def native_set(self, index: u64, value: u64) -> None:
        assert index < self.size
        store(self.base + index * 8, value)

    def native_add(self, index: u64, amount: u64) -> None:
        assert index < self.size
        add(self.base + index * 8, amount)

    def __getitem__(self, index: int) -> Integer:
        if not 0 <= index < self.size:
            raise IndexError(f"{index} in an Array of {self.size}")
        return self.value(self.words(int(index), 1)[0])

    def __setitem__(self, index: int, value: int) -> None:
        if not 0 <= index < self.size:
            raise IndexError(f"{index} in an Array of {self.size}")
        self.set_word(int(index), wrap(u64, value))

    def __len__(self) -> int:
        return self.size

    def to_list(self) -> list[int]:
        """The numbers."""
        return [wrap(self.value, word) for word in self.words(0, self.size)]

    def to_dict(self) -> dict[int, int]:
        """The numbers that are not 0, by index."""
        return {index: value for index, value in enumerate(self.to_list()) if value}

    def to_arrow(self) -> Any:
        """A table of index and value, with the values that are not 0."""
        found = self.to_dict()
        return table({"index": [*found], "value": [*found.values()]})

    def reset(self) -> None:
        super().reset()
        for index in self.to_dict():
            self.set_word(index, 0)

    def __str__(self) -> str:
        return "\n".join(f"[{index}]: {value}" for index, value in self.to_dict().items())


class Hash(Map):
    """Numbers by number: `hash[key] += n` (in one step), `hash[key] = n`, `hash[key]`, `key in hash`. As in
    collections.Counter a key that is not there reads as 0.

    There is room for `capacity` keys, rounded up to a power of two; a new key that finds none is counted in
    `drops`, and nothing is stored for it.
    """

    def __init__(self, capacity: int = 4096, key: type[Integer] = u64, value: type[Integer] = u64) -> None:
        _check_type(key, "the key")
        _check_type(value, "the value")
        _check_size(capacity, LARGEST_WORDS // 4, "the capacity")
        slots = 1 << max(3, (capacity - 1).bit_length())
        # Behind the slots one for the key 0, since 0 marks a free slot.
        super().__init__(cell_count=1, word_count=SLOT_WORDS * (slots + 1))
        self.key, self.value = key, value
        self.slots, self.mask, self.shift = slots, slots - 1, 65 - slots.bit_length()
        self.probes = min(slots, PROBES)

    def find(self, key: u64) -> u64:
        """The address of a key's value, 0 if it is not there."""
        if key == 0:
            place = self.base + self.slots * 16
            return place + 8 if load(place) != 0 else u64(0)
        index = (key * 0x9E3779B97F4A7C15) >> self.shift
        for _ in range(self.probes):
            place = self.base + index * 16
            found = load(place)
            if found == key:
                return place + 8
            if found == 0:
                return u64(0)
            index = (index + 1) & self.mask
        return u64(0)

    def enter(self, key: u64) -> u64:
        """The address of a key's value, 0 if there is no room for it."""
        if key == 0:
            place = self.base + self.slots * 16
            store(place, 1)
            return place + 8
        index = (key * 0x9E3779B97F4A7C15) >> self.shift
        for _ in range(self.probes):
            place = self.base + index * 16
            found = load(place)
            if found == 0:
                found = exchange_if(place, 0, key)
                if found == 0:
                    return place + 8
            if found == key:
                return place + 8
            index = (index + 1) & self.mask
        cell_add(self.cells, 1)
        return u64(0)

    def native_get(self, key: u64) -> u64:
        place = self.find(key)
        return load(place) if place != 0 else u64(0)

    def native_set(self, key: u64, value: u64) -> None:
        place = self.enter(key)
        if place != 0:
            store(place, value)

    def native_add(self, key: u64, amount: u64) -> None:
        place = self.enter(key)
        if place != 0:
            add(place, amount)

    def native_contains(self, key: u64) -> bool:
        return self.find(key) != 0

    native_methods = ("find", "enter", "native_get", "native_set", "native_add", "native_contains")

    def __getitem__(self, key: int) -> Integer:
        return self.value(self.to_dict().get(int(key), 0))

    def __setitem__(self, key: int, value: int) -> None:
        if self.in_session:  # a slot can only be taken by the processor's own compare-and-exchange
            raise TypeError("the target may be writing to this Hash: set its entries before it is registered")
        self.native_set(u64(key), u64(value))

    def __contains__(self, key: int) -> bool:
        return int(key) in self.to_dict()

    def __iter__(self) -> Iterator[int]:
        return iter(self.to_dict())

    def __len__(self) -> int:
        return len(self.to_dict())

    @property
    def drops(self) -> int:
        """Keys that found no room, each time."""
        return self.sums()[0]

    def to_dict(self) -> dict[int, int]:
        """All keys with their values."""
        words = self.words(0, self.word_count)
        found: dict[int, int] = {}
        if words[-2]:
            found[0] = wrap(self.value, words[-1])
        for at in range(0, SLOT_WORDS * self.slots, SLOT_WORDS):
            if words[at]:
                found[wrap(self.key, words[at])] = wrap(self.value, words[at + 1])
        return found

    def to_arrow(self) -> Any:
        """A table of key and value."""
        found = self.to_dict()
        return table({"key": [*found], "value": [*found.values()]})

    def reset(self) -> None:
        """All values are 0 again; the keys keep their places."""
        super().reset()
        words = self.words(0, self.word_count)
        for at in range(0, len(words), SLOT_WORDS):
            if words[at]:
                self.set_word(at + 1, 0)

    def __str__(self) -> str:
        ordered = sorted(self.to_dict().items(), key=lambda item: item[1])
        return "\n".join(f"[{key}]: {value}" for key, value in ordered)


class PerThread(Map):
    """A number for each thread: `get()`, `set(n)`, `add(n)` in a handler; by tid in Python."""

    native_methods = ("get", "set", "add")

    def __init__(self, capacity: int = 1024, value: type[Integer] = u64) -> None:
        self.table = Hash(capacity, u32, value)
        super().__init__()

    def get(self) -> u64:
        """The thread's number."""
        return self.table.native_get(u64(tid()))

    def set(self, value: u64) -> None:
        """Set the thread's number."""
        self.table.native_set(u64(tid()), value)

    def add(self, amount: u64) -> None:
        """Add to the thread's number."""
        self.table.native_add(u64(tid()), amount)

    def to_dict(self) -> dict[int, int]:
        """The numbers by tid."""
        return self.table.to_dict()

    def to_arrow(self) -> Any:
        """A table of tid and value."""
        return self.table.to_arrow().rename_columns(["tid", "value"])

    def reset(self) -> None:
        self.table.reset()

    def __str__(self) -> str:
        return str(self.table)


class Stats(Map):
    """Count, sum, least, greatest and mean of the values that are added."""

    native_methods = ("add",)
    maxima = (2, 3)

    def __init__(self) -> None:
        super().__init__(cell_count=4)

    def add(self, value: u64) -> None:
        """Add a value (from a handler)."""
        cell_max(self.cells + 2, value)  # first, so that whoever sees the count sees them
        cell_max(self.cells + 3, ~value)
        cell_add(self.cells + 1, value)
        cell_add(self.cells, 1)

    @property
    def count(self) -> int:
        return self.sums()[0]

    @property
    def sum(self) -> int:
        """Modulo 2**64."""
        return self.sums()[1]

    @property
    def min(self) -> int | None:
        """The least value; None if there is none."""
        return self.maximum(3) ^ (1 << 64) - 1 if self.count else None

    @property
    def max(self) -> int | None:
        """The greatest value; None if there is none."""
        return self.maximum(2) if self.count else None

    @property
    def mean(self) -> float | None:
        """The mean; None if there is no value."""
        count, total, *_ = self.sums()
        return total / count if count else None

    def to_dict(self) -> dict[str, int | float | None]:
        return {
            "count": self.count, "sum": self.sum, "min": self.min, "max": self.max, "mean": self.mean,
        }  # fmt: skip

    def reset(self) -> None:
        super().reset()
        self._storage.clear_maxima(self.first_cell + 2, 2)

    def __str__(self) -> str:
        mean = self.mean
        average = "-" if mean is None else f"{mean:.1f}"
        return f"count {self.count}, sum {self.sum}, min {self.min}, max {self.max}, mean {average}"
