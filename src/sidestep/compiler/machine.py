"""What a handler runs on, where that is not a target: memory, time, identity, maps' cells. For tests and for
plain Python."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from sidestep.compiler.integers import Integer

WORD = (1 << 64) - 1


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
        size = kind.bits // 8
        if any(address + offset not in self.memory for offset in range(size)):
            raise HandlerFault(f"no memory at {address:#x}")
        self.put(address, int(value).to_bytes(size, "little", signed=kind.signed))

    def text(self, pointer: int | None, limit: int) -> bytes | None:
        """The bytes up to a NUL or to where memory ends, at most `limit`; None if the first is not there. The
        thread's name without a pointer."""
        if pointer is None:
            return self.name[:limit]
        found = bytearray()
        while len(found) < limit and (byte := self.memory.get(pointer + len(found), 0)):
            found.append(byte)
        return bytes(found) if pointer in self.memory else None

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

    def frame(self, number: int) -> int:
        """The n-th address of the backtrace, 0 behind its end."""
        return self.backtrace[number] if number < len(self.backtrace) else 0

    def random(self) -> int:
        """xorshift64: the same numbers for the same seed."""
        value = self.seed
        value ^= value << 13 & WORD
        value ^= value >> 7
        value ^= value << 17 & WORD
        self.seed = value
        return value

    # Maps

    def cell_add(self, cell: int, amount: int) -> None:
        self.cells[cell] = self.cells.get(cell, 0) + amount & WORD

    def cell_max(self, cell: int, value: int) -> None:
        self.cells[cell] = max(self.cells.get(cell, 0), value)

    def load(self, address: int) -> int:
        return self.words.get(address, 0)

    def store(self, address: int, value: int) -> None:
        self.words[address] = value

    def add_to(self, address: int, amount: int) -> None:
        self.words[address] = self.words.get(address, 0) + amount & WORD

    def exchange_if(self, address: int, old: int, new: int) -> int:
        found = self.words.get(address, 0)
        if found == old:
            self.words[address] = new
        return found


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
