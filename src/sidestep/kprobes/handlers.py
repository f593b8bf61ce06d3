"""Native handlers in one session: their code, the memory of their maps, the indexes of their events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from sidestep import errors
from sidestep.address import Range
from sidestep.arch.x86_64.exchange import add, exchange_pair
from sidestep.arch.x86_64.handlers import NativeCall, inlined
from sidestep.arch.x86_64.runtime import STACK_OF_HANDLER, STACK_OF_ROUTINE
from sidestep.arch.x86_64.stack_use import UnknownStack, stack_use
from sidestep.compiler.compiled import Compiled, compile_native
from sidestep.compiler.event import Event
from sidestep.compiler.faults import Site
from sidestep.compiler.native import NativeFunction
from sidestep.compiler.record_format import event_program
from sidestep.errors import ProbeError
from sidestep.events.clock import Clock
from sidestep.events.counters import Counters
from sidestep.events.record import EventProgram
from sidestep.handlers.base import Map, Symbol
from sidestep.target.base import Engine

CLOCK_SHIFT = 32


class Storage:
    """A session's memory for maps (handlers.base.Storage)."""

    def __init__(self, engine: Engine, counters: Counters) -> None:
        self._engine, self._counters = engine, counters

    def cell_sums(self, first: int, count: int) -> list[int]:
        return self._counters.totals(first + count)[first:] if count else []

    def cell_maxima(self, first: int, count: int) -> list[int]:
        return [self._counters.largest(index) for index in range(first, first + count)]

    def clear_maxima(self, first: int, count: int) -> None:
        for index in range(first, first + count):
            self._counters.clear_cells(index)

    def words(self, address: int, count: int) -> Sequence[int]:
        with self._engine.words(address, count) as words:
            return words.tolist()

    def set_word(self, address: int, value: int) -> None:
        with self._engine.words(address, 1) as words:
            words[0] = value

    def exchange_pair(self, address: int, old: tuple[int, int], new: tuple[int, int]) -> bool:
        with self._engine.words(address, 2) as words:
            return exchange_pair(words, old, new)

    def add_to_word(self, address: int, amount: int) -> None:
        with self._engine.words(address, 1) as words:
            add(words, amount)

    def add_to_cell(self, cell: int, amount: int) -> None:
        self._counters.add_shared(cell, amount)


class _Placed(Protocol):
    def __call__(self, hits: int, faults: int, address: int, at_entry: bool) -> NativeCall: ...


class Handlers:
    """Puts handlers into the target, each once. `take_indexes` gives so many counters in a row; `add_event`
    is told of each event class before anything can emit it."""

    def __init__(
        self,
        engine: Engine,
        counters: Counters,
        take_indexes: Callable[[int], int],
        add_event: Callable[[EventProgram], None],
    ) -> None:
        self._engine, self._counters = engine, counters
        self._take_indexes, self._add_event = take_indexes, add_event
        self._storage = Storage(engine, counters)
        self._placed: dict[NativeFunction, _Placed] = {}
        self._sites: dict[NativeFunction, tuple[Site, ...]] = {}
        self._maps: list[Map] = []
        self._events: dict[type[Event], int] = {}
        self._clock: Mapping[str, int] | None = None

    def call(
        self, handler: NativeFunction, near: Range, hits: int, faults: int, address: int, at_entry: bool
    ) -> NativeCall:
        """What a detour buffer does for a probe with this handler. Raises ProbeError."""
        placed = self._placed.get(handler)
        if placed is None:
            placed = self._placed[handler] = self._place(handler, near)
        return placed(hits, faults, address, at_entry)

    def sites(self, handler: NativeFunction) -> tuple[Site, ...]:
        """Where a handler that was placed can end early."""
        return self._sites[handler]

    def _place(self, handler: NativeFunction, near: Range) -> _Placed:
        compiled = compile_native(handler.representation)
        _check_stack(handler.representation.name, compiled)
        lowered = compiled.lowered
        self._sites[handler] = lowered.sites
        values = {name: self._value(thing) for name, thing in lowered.symbols.items() if thing not in RUNTIME}

        made = b""

        def emit(address: int, runtime: Mapping[str, int]) -> bytes:
            nonlocal made
            named = {name: runtime[str(thing)] for name, thing in lowered.symbols.items() if thing in RUNTIME}
            made = compiled.code.placed(address, {**runtime, **values, **named})
            return made

        code = self._engine.place_code(near, emit) + compiled.code.entry
        start = compiled.code.entry
        inline = inlined(made[start : start + compiled.code.size], code)
        slots, written, arguments = lowered.slots, lowered.written, lowered.arguments
        leaves = lowered.returns and "ip" in lowered.written
        answers = lowered.returns or lowered.faults

        def make(hits: int, faults: int, address: int, at_entry: bool) -> NativeCall:
            exits = None if lowered.exits is None else tuple(address + each for each in sorted(lowered.exits))
            return NativeCall(
                hits,
                faults,
                code,
                slots,
                written,
                arguments,
                leaves,
                answers,
                address,
                at_entry,
                inline,
                exits,
            )

        return make

    def _value(self, thing: object) -> int:
        """The address, or number, that a symbol stands for."""
        if isinstance(thing, Symbol):
            self._attach(thing.owner)
            return thing.address
        if isinstance(thing, type) and issubclass(thing, Event):
            return self._event(thing)
        if self._clock is None:
            self._clock = _clock_numbers()
        return self._clock[str(thing)]

    def _attach(self, owner: Map) -> None:
        if owner.is_of(self):
            return
        owner.check_free(self)
        first = self._take_indexes(owner.cell_count) if owner.cell_count else 0
        address = self._engine.allocate(owner.word_count) if owner.word_count else 0
        assert address % 16 == 0, "two words are exchanged at once"
        owner.attach(self, self._storage, first, address)
        self._counters.maxima.update(first + index for index in owner.maxima)
        self._maps.append(owner)

    def _event(self, kind: type[Event]) -> int:
        index = self._events.get(kind)
        if index is None:
            index = self._events[kind] = self._take_indexes(1)
            self._add_event(event_program(kind, index))
        return index

    @property
    def event_indexes(self) -> list[int]:
        """Of all classes."""
        return list(self._events.values())

    def release(self) -> None:
        """The session is over: maps keep what they have."""
        for owner in self._maps:
            owner.release()


def _check_stack(name: str, compiled: Compiled) -> None:
    """Raises ProbeError for a handler that would use too much of the target's stack."""
    code = compiled.code
    functions = {reference.addend for reference in code.references if not reference.symbol}
    called = [str(thing) for thing in compiled.lowered.symbols.values() if thing in RUNTIME]
    routines = max((STACK_OF_ROUTINE[routine] for routine in called), default=0)
    try:
        used = stack_use(code.code, code.entry, functions, routines)
    except UnknownStack as error:
        raise ProbeError(name, errors.COMPILER_FAILED, f"{error} (an internal error)") from error
    if used > STACK_OF_HANDLER:
        detail = f"it needs {used} bytes of the target's stack, {STACK_OF_HANDLER} at most"
        raise ProbeError(name, errors.HANDLER_TOO_LARGE, detail)


RUNTIME = tuple(STACK_OF_ROUTINE)


def _clock_numbers() -> Mapping[str, int]:
    """`start` + (cycles - `base`) * `scale` >> 32 is CLOCK_MONOTONIC in nanoseconds."""
    tsc, seconds, factor = Clock().line
    return {
        "clock_base": tsc,
        "clock_start": round(seconds * 1e9),
        "clock_scale": round(factor * 1e9 * (1 << CLOCK_SHIFT)),
    }
