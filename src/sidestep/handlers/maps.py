"""Maps of numbers: Counter, Array, PerThread, Stats."""

from __future__ import annotations

from typing import Any

from sidestep.compiler.integers import Integer, u32, u64, wrap
from sidestep.compiler.intrinsics import add, cell_add, cell_max, load, store, tid
from sidestep.handlers.arrow import table
from sidestep.handlers.base import Map, check_value
from sidestep.handlers.hash import Hash
from sidestep.handlers.table import LARGEST_WORDS


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
        check_value(value)
        if not 0 < size <= LARGEST_WORDS:
            raise ValueError(f"the size is 1 to {LARGEST_WORDS}, not {size}")
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
