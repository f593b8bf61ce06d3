"""What all maps have in common: places in a session's memory, and how Python reads them.

A map's methods are written in the subset that native handlers are compiled from. They run in the target on
the session's memory, and in plain Python on the current machine's (compiler/machine.py), with one meaning.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, NamedTuple, Protocol

from sidestep import errors
from sidestep.compiler import machine
from sidestep.compiler.integers import INTEGERS, u64
from sidestep.compiler.machine import HandlerFault, Machine
from sidestep.errors import ProbeError
from sidestep.events.layout import WORD

PATIENCE = 1 << 16  # words that Python looks at for one change of a map
_simulated_cells = itertools.count(1, 1 << 20)
_simulated_bases = itertools.count(1 << 32, 1 << 32)


class Storage(Protocol):
    """A session's memory for maps. Cells are counters that each thread has for itself; addresses are those
    in the target."""

    def cell_sums(self, first: int, count: int) -> list[int]:
        """Each cell, added up over all threads, modulo 2**64."""

    def cell_maxima(self, first: int, count: int) -> list[int]:
        """Each cell's largest value over all threads."""

    def clear_maxima(self, first: int, count: int) -> None:
        """Set cells to 0 that hold maxima."""

    def words(self, address: int, count: int) -> Sequence[int]:
        """Unsigned words of 8 bytes."""

    def set_word(self, address: int, value: int) -> None:
        """Set one word in one step."""

    def exchange_pair(self, address: int, old: tuple[int, int], new: tuple[int, int]) -> bool:
        """Set two words in one step, if they are what they were: whether that was so."""

    def add_to_word(self, address: int, amount: int) -> None:
        """Add to one word in one step."""

    def add_to_cell(self, cell: int, amount: int) -> None:
        """Add to a cell, for no thread of the target."""


class Simulated:
    """The current machine's memory."""

    def cell_sums(self, first: int, count: int) -> list[int]:
        return [machine.current().cells.get(first + i, 0) for i in range(count)]

    cell_maxima = cell_sums

    def clear_maxima(self, first: int, count: int) -> None:
        for i in range(count):
            machine.current().cells[first + i] = 0

    def words(self, address: int, count: int) -> Sequence[int]:
        return [machine.current().load(address + WORD * i) for i in range(count)]

    def set_word(self, address: int, value: int) -> None:
        machine.current().store(address, value)

    def exchange_pair(self, address: int, old: tuple[int, int], new: tuple[int, int]) -> bool:
        return machine.current().exchange_pair(address, *old, *new)

    def add_to_word(self, address: int, amount: int) -> None:
        machine.current().add_to(address, amount)

    def add_to_cell(self, cell: int, amount: int) -> None:
        machine.current().cell_add(cell, amount)


class Stored(Machine):
    """A machine whose maps are in a session's memory: what Python does to them means what handlers do.

    HandlerFault where a target changes its map all the time, so that nothing comes to an end.
    """

    def __init__(self, storage: Storage) -> None:
        super().__init__()
        self._storage, self._left = storage, PATIENCE

    def load(self, address: int) -> int:
        self._left -= 1
        if self._left < 0:
            raise HandlerFault("the target keeps changing the map")
        return super().load(address) if address >= machine.SCRATCH else self._storage.words(address, 1)[0]

    def store(self, address: int, value: int) -> None:
        if address >= machine.SCRATCH:
            super().store(address, value)
        else:
            self._storage.set_word(address, value)

    def exchange_pair(self, address: int, low: int, high: int, new_low: int, new_high: int) -> bool:
        return self._storage.exchange_pair(address, (low, high), (new_low, new_high))

    def add_to(self, address: int, amount: int) -> None:
        self._storage.add_to_word(address, amount)

    def cell_add(self, cell: int, amount: int) -> None:
        self._storage.add_to_cell(cell, amount)


class Snapshot:
    """What a session's memory held for one map when the session ended."""

    def __init__(self, live: Storage, owner: Map) -> None:
        self._first, self._base = owner.first_cell, owner.address
        self._sums = live.cell_sums(self._first, owner.cell_count)
        self._maxima = live.cell_maxima(self._first, owner.cell_count)
        self._words = list(live.words(self._base, owner.word_count)) if owner.word_count else []

    def cell_sums(self, first: int, count: int) -> list[int]:
        return self._sums[first - self._first :][:count]

    def cell_maxima(self, first: int, count: int) -> list[int]:
        return self._maxima[first - self._first :][:count]

    def clear_maxima(self, first: int, count: int) -> None:
        self._maxima[first - self._first :][:count] = [0] * count

    def words(self, address: int, count: int) -> Sequence[int]:
        return self._words[(address - self._base) // WORD :][:count]

    def set_word(self, address: int, value: int) -> None:
        self._words[(address - self._base) // WORD] = value

    def exchange_pair(self, address: int, old: tuple[int, int], new: tuple[int, int]) -> bool:
        at = (address - self._base) // WORD
        unchanged = (*self._words[at : at + 2],) == old
        if unchanged:
            self._words[at : at + 2] = new
        return unchanged

    def add_to_word(self, address: int, amount: int) -> None:
        at = (address - self._base) // WORD
        self._words[at] = self._words[at] + amount & machine.ALL_BITS

    def add_to_cell(self, cell: int, amount: int) -> None:
        self._sums[cell - self._first] += amount


class Symbol(NamedTuple):
    """A place of a map, known when its code is put into a target."""

    owner: Map
    name: str

    @property
    def label(self) -> str:
        return f"{type(self.owner).__name__}.{self.name}"

    @property
    def address(self) -> int:
        return int(getattr(self.owner, self.name))

    def __hash__(self) -> int:
        return hash((id(self.owner), self.name))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Symbol) and other.owner is self.owner and other.name == self.name


def check_value(kind: object) -> None:
    """Raises TypeError for what a map's value cannot be."""
    if kind not in INTEGERS:
        raise TypeError(f"the value is one of u8 .. u64 and i8 .. i64, not {kind!r}")


class Map:
    """The base of maps: `cell_count` counters for each thread, `word_count` words that all share."""

    native_methods: ClassVar[tuple[str, ...]] = ()
    native_parts: ClassVar[tuple[str, ...]] = ()  # methods for the code of maps only
    native_symbols: ClassVar[tuple[str, ...]] = ("cells", "base")
    maxima: ClassVar[tuple[int, ...]] = ()  # the cells that hold maxima

    def __init__(self, cell_count: int = 0, word_count: int = 0) -> None:
        # In pairs: each map begins at a multiple of 16, where two words can be exchanged at once.
        self.cell_count, self.word_count = cell_count, word_count + word_count % 2
        self.first_cell, self.address = next(_simulated_cells), next(_simulated_bases)
        self._storage: Storage = Simulated()
        self._session: object | None = None
        self._sums_at_reset = [0] * cell_count

    @property
    def cells(self) -> u64:
        """The number of the first cell."""
        return u64(self.first_cell)

    @property
    def base(self) -> u64:
        """The address of the first word."""
        return u64(self.address)

    def symbol(self, name: str) -> Symbol:
        """What a place of the map is called in code."""
        return Symbol(self, name)

    # Sessions

    def attach(self, session: object, storage: Storage, first_cell: int, address: int) -> None:
        """Give the map its places in a session; what it holds in words goes along. Raises ProbeError if
        another session has it."""
        self.check_free(session)
        words = list(self.words(0, self.word_count)) if self.word_count else []
        self._session, self._storage = session, storage
        self.first_cell, self.address = first_cell, address
        for index, word in enumerate(words):
            if word:
                self.set_word(index, word)
        self._sums_at_reset = [0] * self.cell_count

    def check_free(self, session: object) -> None:
        """Raises ProbeError MAP_IN_USE if another session has it."""
        if self._session is not None and self._session is not session:
            raise ProbeError(type(self).__name__, errors.MAP_IN_USE)

    def is_of(self, session: object) -> bool:
        return self._session is session

    def release(self) -> None:
        """Keep what was collected; the session is over."""
        self._storage = Snapshot(self._storage, self)
        self._session = None

    # Reading

    def sums(self) -> list[int]:
        """The cells' sums since the last reset."""
        now = self._storage.cell_sums(self.first_cell, self.cell_count)
        return [
            value - before & (1 << 64) - 1 for value, before in zip(now, self._sums_at_reset, strict=True)
        ]

    def maximum(self, index: int) -> int:
        """The largest value of one cell."""
        return self._storage.cell_maxima(self.first_cell + index, 1)[0]

    def words(self, first: int, count: int) -> Sequence[int]:
        """Words of the shared memory."""
        return self._storage.words(self.address + WORD * first, count)

    @contextmanager
    def here(self) -> Iterator[Machine]:
        """Run the map's methods, in plain Python, on the memory where it is."""
        with machine.on(machine.current() if self.is_simulated else Stored(self._storage)) as found:
            yield found

    @property
    def in_session(self) -> bool:
        """Whether a target may be writing to it."""
        return self._session is not None

    @property
    def is_simulated(self) -> bool:
        """Whether it was in no session yet: its memory is the current machine's."""
        return isinstance(self._storage, Simulated)

    def set_word(self, index: int, value: int) -> None:
        self._storage.set_word(self.address + WORD * index, value)

    def reset(self) -> None:
        """Start again from nothing, while the target runs. What comes in at that moment counts before or
        after."""
        self._sums_at_reset = self._storage.cell_sums(self.first_cell, self.cell_count)
