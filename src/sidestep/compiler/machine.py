"""What a handler runs on, where that is not a target: memory, time, identity, maps' cells. For tests and for
plain Python."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from sidestep.compiler.integers import Integer
from sidestep.events.record import COMM_SIZE

ALL_BITS = (1 << 64) - 1
SCRATCH = 1 << 62
"""Where handlers' own words are in the simulated memory of maps: `SCRATCH_SIZE` bytes each."""
SCRATCH_SIZE = 4096


LONGEST_WALK = 12


class HandlerFault(Exception):
    """A handler ended early; in a target this is counted and nothing else happens."""


@dataclass(slots=True)
class Machine:
    """A simulated target. `memory` has its bytes by address; reading another address is a fault.

    `words` is the memory of maps, `cells` their per-thread counters added up; `events` what was emitted.
    """

    memory: dict[int, int] = field(default_factory=dict)
    time: int = 0
    thread: int = 1
    process: int = 1
    on_cpu: int = 0
    backtrace: tuple[int, ...] = ()
    name: bytes = b"python"
    words: dict[int, int] = field(default_factory=dict)
    cells: dict[int, int] = field(default_factory=dict)
    events: list[Any] = field(default_factory=list)
    seed: int = 1

    def put(self, address: int, data: bytes) -> None:
        """Have bytes at an address."""
        self.memory.update(zip(itertools.count(address), data, strict=False))

    def read(self, address: int, kind: type[Integer]) -> int:
        try:
            raw = bytes(self.memory[address + offset] for offset in range(kind.bits // 8))
        except KeyError as error:
            raise HandlerFault(f"no memory at {address:#x}") from error
        return int.from_bytes(raw, "little", signed=kind.signed)

    def write(self, address: int, kind: type[Integer], value: int) -> None:
        """Write from the first byte on, as the kernel does: what is before the end of memory is written."""
        for place, byte in enumerate(
            int(value).to_bytes(kind.bits // 8, "little", signed=kind.signed), address
        ):
            if place not in self.memory:
                raise HandlerFault(f"no memory at {place:#x}")
            self.memory[place] = byte

    def text(self, pointer: int | None, limit: int) -> bytes | None:
        """The bytes up to a NUL or to where memory ends, at most `limit`; None if the first is not there. The
        thread's name without a pointer."""
        if pointer is None:
            return self.name[:limit]
        found = bytearray()
        while len(found) < limit and (byte := self.memory.get(pointer + len(found), 0)):
            found.append(byte)
        return bytes(found) if pointer in self.memory else None

    def whole_text(self, pointer: int | None, limit: int) -> bytes:
        """As `text`, but memory that ends before the text does is a fault."""
        found = self.text(pointer, limit)
        behind = None if pointer is None else pointer + len(found or b"")
        if found is None or (behind is not None and len(found) < limit and behind not in self.memory):
            raise HandlerFault(f"no memory at {behind or 0:#x}")
        return found

    def put_text(self, space: int, pointer: int | None, limit: int) -> int:
        """Put the bytes up to a limit, or to where memory ends, into words that are zero: how many there
        were."""
        if pointer is None:
            found = self.name[: COMM_SIZE - 1].ljust(COMM_SIZE, b"\0")
        else:
            there = itertools.takewhile(
                lambda address: address in self.memory, range(pointer, pointer + limit)
            )
            found = bytes(self.memory[address] for address in there)
        words = (found[at : at + 8].ljust(8, b"\0") for at in range(0, len(found), 8))
        for address, word in zip(itertools.count(space, 8), words, strict=False):
            self.words[address] = int.from_bytes(word, "little")
        return len(found)

    def same_text(self, pointer: int | None, wanted: bytes) -> bool:
        """Whether exactly these bytes are there; a difference is seen before memory that is not there."""
        for offset, byte in enumerate(wanted):
            if pointer is None:
                found: int | None = self.name.ljust(16, b"\0")[offset]
            else:
                found = self.memory.get(pointer + offset)
            if found is None:
                raise HandlerFault(f"no memory at {(pointer or 0) + offset:#x}")
            if found != byte:
                return False
        return True

    def now(self) -> int:
        return self.time

    def tid(self) -> int:
        return self.thread

    def pid(self) -> int:
        return self.process

    def cpu(self) -> int:
        return self.on_cpu

    def walk(self) -> int:
        """The address of a free word, behind it the backtrace: LONGEST_WALK words, 0 behind its end."""
        return self.keep(0, (0, *self.backtrace[:LONGEST_WALK], *[0] * (LONGEST_WALK - len(self.backtrace))))

    def random(self) -> int:
        """xorshift64: the same numbers for the same seed."""
        value = self.seed
        value ^= value << 13 & ALL_BITS
        value ^= value >> 7
        value ^= value << 17 & ALL_BITS
        self.seed = value
        return value

    # Maps

    def keep(self, number: int, words: Iterable[int]) -> int:
        """Put words where handlers have words of their own: the address."""
        start = SCRATCH + number * SCRATCH_SIZE
        for address, word in zip(itertools.count(start, 8), words, strict=False):
            self.words[address] = word
        return start

    def cell_add(self, cell: int, amount: int) -> None:
        self.cells[cell] = self.cells.get(cell, 0) + amount & ALL_BITS

    def cell_max(self, cell: int, value: int) -> None:
        self.cells[cell] = max(self.cells.get(cell, 0), value)

    def load(self, address: int) -> int:
        return self.words.get(address, 0)

    def store(self, address: int, value: int) -> None:
        self.words[address] = value

    def add_to(self, address: int, amount: int) -> None:
        self.words[address] = self.words.get(address, 0) + amount & ALL_BITS

    def exchange_if(self, address: int, old: int, new: int) -> int:
        found = self.words.get(address, 0)
        if found == old:
            self.words[address] = new
        return found

    def exchange_pair(self, address: int, low: int, high: int, new_low: int, new_high: int) -> bool:
        unchanged = (self.words.get(address, 0), self.words.get(address + 8, 0)) == (low, high)
        if unchanged:
            self.words[address], self.words[address + 8] = new_low, new_high
        return unchanged


_current: ContextVar[Machine] = ContextVar("machine")
_usual = Machine()


def current() -> Machine:
    """The machine that handlers run on in plain Python: one of this process, unless `on` says otherwise."""
    return _current.get(_usual)


@contextmanager
def on(machine: Machine) -> Iterator[Machine]:
    """Run handlers on a machine."""
    token = _current.set(machine)
    try:
        yield machine
    finally:
        _current.reset(token)
