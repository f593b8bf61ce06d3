"""Numbers by key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sidestep.compiler.integers import Integer, u64, wrap
from sidestep.compiler.intrinsics import bit_length, load, store
from sidestep.compiler.keys import KeyType, check_key, is_wide, key_of, key_words, word_count
from sidestep.compiler.struct import Struct
from sidestep.handlers.arrow import table
from sidestep.handlers.base import check_value
from sidestep.handlers.table import Table

LOW_BITS, HIGH_BITS = 0x0101010101010101, 0x8080808080808080  # of each byte


class Hash(Table):
    """Numbers by key: `hash[key] += n` (in one step), `hash[key] = n`, `hash[key]`, `key in hash`, `del
    hash[key]`. As in collections.Counter a key that is not there reads as 0, and can be deleted. Keys can
    only be deleted where the Hash is made `deletable`: each change takes some nanoseconds more then.

    The key is an integer type, `string(limit)` for text, or a Struct. There is room for `capacity` keys; a
    new key that finds none is counted in `drops`, and nothing is stored for it.
    """

    def __init__(
        self,
        capacity: int = 4096,
        key: KeyType = u64,
        value: type[Integer] = u64,
        *,
        deletable: bool = False,
    ) -> None:
        check_key(key)
        check_value(value)
        super().__init__(capacity, word_count(key), wide=is_wide(key), deletable=deletable)
        self.key, self.value = key, value

    def settle(self, text: u64, count: u64, limit: u64) -> None:
        """Clear what is behind the end of text, of which `count` bytes could be read, and behind them zeros
        are."""
        ended = False
        for number in range(u64(self.key_words)):
            word = load(text + number * 8)
            ends = (word - LOW_BITS) & ~word & HIGH_BITS  # the lowest bit is that of the first byte that is 0
            if ended:
                store(text + number * 8, 0)
            elif ends != 0:
                ends &= -ends
                assert number * 8 + (bit_length(ends) - 1 >> 3) < count or count >= limit, (
                    "text without an end"
                )
                store(text + number * 8, word & ((ends >> 7) - 1))
                ended = True

    # In Python

    def _at(self, memory: Any, key: Any) -> Any:
        """What the methods take for a key."""
        words = key_words(self.key, key)
        return u64(memory.keep(0, words) if self.wide else words[0])

    def __getitem__(self, key: Any) -> Integer:
        with self.here() as memory:
            return self.value(self.native_get(self._at(memory, key)))

    def __setitem__(self, key: Any, value: int) -> None:
        if self.in_session:  # += would read, and write, and lose what comes between
            raise TypeError("the target may be writing to this Hash: use its set(key, n) and add(key, n)")
        self.set(key, value)

    def set(self, key: Any, value: int) -> None:
        """Set a key's number, while the target runs."""
        with self.here() as memory:
            self.native_set(self._at(memory, key), u64(value))

    def add(self, key: Any, amount: int = 1) -> None:
        """Add to a key's number in one step, while the target runs."""
        with self.here() as memory:
            self.native_add(self._at(memory, key), u64(amount))

    def __delitem__(self, key: Any) -> None:
        if not self.deletable:
            raise TypeError("no key of this Hash can be deleted: make it with Hash(..., deletable=True)")
        with self.here() as memory:
            self.native_delete(self._at(memory, key))

    def __contains__(self, key: Any) -> bool:
        with self.here() as memory:
            return self.native_contains(self._at(memory, key))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.to_dict())

    def __len__(self) -> int:
        return len(self.to_dict())

    def to_dict(self) -> dict[Any, int]:
        """All keys with their values. Text is str, or bytes where it is no UTF-8."""
        return {key_of(self.key, entry.key): wrap(self.value, entry.value) for entry in self.entries()}

    def to_arrow(self) -> Any:
        """A table of key and value; a structure has a column for each field, text that is no UTF-8 its
        escapes."""
        found = self.to_dict()
        columns: dict[str, list[Any]] = {
            "key": [
                key.decode("utf-8", "backslashreplace") if isinstance(key, bytes) else key for key in found
            ]
        }
        if isinstance(self.key, type) and issubclass(self.key, Struct):
            columns = {name: [int(getattr(key, name)) for key in found] for name in self.key.fields}
        return table({**columns, "value": [*found.values()]})

    def __str__(self) -> str:
        ordered = sorted(self.to_dict().items(), key=lambda item: item[1])
        return "\n".join(f"[{key!r}]: {value}" for key, value in ordered)
