"""Runs native handlers in three ways: as machine code, by the interpreter, and as plain Python.

The machine code runs as it does in a target: called by a detour buffer, in the process that
detours/player.py drives, on maps and rings in shared memory.
"""

from __future__ import annotations

import itertools
import os
import random
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from detours.player import (
    ALL_LIVE,
    ARENA,
    ARENA_SIZE,
    KEEPS_ALL,
    MEMORY,
    MEMORY_SIZE,
    STACK_TOP,
    TEXT,
    Player,
)
from differential.handler_programs import (
    ALWAYS_SET,
    CONVERSION_ERRORS,
    FLAGS,
    MAP_NAMES,
    REGISTERS,
    STACK_WORDS,
    TEXTS,
    generate,
    load,
)
from sidestep import errors
from sidestep.address import Range
from sidestep.arch.x86_64.handlers import general
from sidestep.arch.x86_64.reserve import reserve
from sidestep.arch.x86_64.writer import Assembler
from sidestep.compiler import interpreter
from sidestep.compiler import machine as machines
from sidestep.compiler.diagnostics import HandlerError
from sidestep.compiler.machine import HandlerFault, Machine
from sidestep.compiler.native import NativeFunction
from sidestep.compiler.plain import FAULTS
from sidestep.compiler.registers import ARGUMENTS, Registers
from sidestep.errors import ProbeError
from sidestep.events import layout
from sidestep.events.decode import FAULT
from sidestep.events.record import EventProgram
from sidestep.kprobes.handlers import Handlers
from sidestep.target.base import Engine
from sidestep.target.process.natives import runtime_symbols

LANDING = TEXT + 0x8000
LANDS = bytes.fromhex("49f7d7 c3")  # not %r15; ret
LEAVES = (
    (f"regs.ip = {LANDING}",),
    ("regs.ip = regs.return_address", "regs.sp += 8"),
)
MAP_MEMORY = 0x61_0000_0000
MAP_MEMORY_SIZE = 1 << 20
CODE = ARENA + (ARENA_SIZE >> 1)  # behind the buffers
HANDLER_SPACING = 64
WORDS = tuple(0x1111_0000_0000_0000 * n + n for n in range(1, STACK_WORDS + 1))
FRAMES = {
    STACK_TOP + 0x200: (STACK_TOP + 0x300, 0x4000_1000),
    STACK_TOP + 0x300: (STACK_TOP + 0x400, 0x4000_2000),
    STACK_TOP + 0x400: (STACK_TOP + 0x500, 0x4000_3000),
    STACK_TOP + 0x500: (STACK_TOP + 0x500, 0x4000_4000),
    STACK_TOP + 0x600: (STACK_TOP + 0x200, 0x4000_5000),
    STACK_TOP + 0x700: (STACK_TOP + 0x701, 0),
    STACK_TOP + 0x801: (0, 0x4000_6000),
}
"""Frames on the stack: the frame pointer before, and the return address. The walk ends where it does not
rise."""
EDGES = (0, 1, 2, 7, 8, 127, 128, 255, 256, (1 << 31) - 1, 1 << 31, 1 << 63, (1 << 63) - 1, (1 << 64) - 1)
INACCESSIBLE = MEMORY + MEMORY_SIZE + layout.PAGE_SIZE
OUT_OF_FUEL = "out of fuel"
Observed = dict[str, Any]


class PlayerEngine:
    """What Handlers needs of an engine, in a player."""

    def __init__(self, player: Player) -> None:
        self.player = player
        self._words = MAP_MEMORY
        self._code = CODE
        self._reserve: int | None = None
        assert player.ask("private", MAP_MEMORY, MAP_MEMORY_SIZE, "keep") == "1"

    def allocate(self, words: int) -> int:
        address = self._words
        self._words += 8 * words
        assert self._words <= MAP_MEMORY + MAP_MEMORY_SIZE
        return address

    def words(self, address: int, count: int) -> memoryview:
        return memoryview(self.player.peek(address, 8 * count)).cast("Q")

    def place_code(self, near: Range, emit: Callable[[int, Mapping[str, int]], bytes]) -> int:
        symbols = {**runtime_symbols(self.player.runtime), "reserve": self.reserve()}
        return self._place(emit(self._code, symbols))

    def reserve(self) -> int:
        if self._reserve is None:
            assembler = Assembler(self._code)
            reserve(assembler, self.player.runtime, self.player.rings, None)
            self._reserve = self._place(assembler.finish())
        return self._reserve

    def _place(self, code: bytes) -> int:
        address = self._code
        self.player.poke(address, code)
        self._code += len(code) + 15 & ~15
        assert self._code <= ARENA + ARENA_SIZE
        return address


@dataclass(slots=True)
class Case:
    """One handler with the inputs of its runs, one after the other. `simulated` has maps of its own."""

    name: str
    text: str
    simulated: dict[str, Any]
    native: dict[str, Any]
    inputs: list[dict[str, int]]
    address: int = 0
    hits: int = 0
    faults: int = 0


@dataclass(slots=True)
class Tally:
    """What was run, and how it ended."""

    runs: int = 0
    faults: int = 0
    events: int = 0
    left: int = 0
    refused: int = 0

    def __add__(self, other: Tally) -> Tally:
        pairs = zip(self.numbers, other.numbers, strict=True)
        return Tally(*(a + b for a, b in pairs))

    @property
    def numbers(self) -> tuple[int, ...]:
        return self.runs, self.faults, self.events, self.left, self.refused


class Mismatch(AssertionError):
    """Two ways to run a handler do not agree."""


def run_batch(program: Path, seeds: Sequence[int], runs: int = 4) -> Tally:
    """Generate, run and compare the programs of these numbers. Raises Mismatch."""
    tally = Tally()
    cases = []
    for seed in seeds:
        case = _case(seed, runs)
        if case is None:
            tally.refused += 1
        else:
            cases.append(case)
    with Player(program, thread_rings=2, ring_size=1 << 16) as player:
        os.sched_setaffinity(player.pid, {min(os.sched_getaffinity(player.pid))})
        placed = _run_native(player, cases)
        for case, observed in placed:
            tally += _compare(case, observed, player.pid)
        tally.refused += len(cases) - len(placed)
    return tally


def _case(seed: int, runs: int) -> Case | None:
    source = random.Random(seed)
    leave = source.choice(LEAVES)
    text, name = generate(seed, leave), f"<program {seed}>"
    try:
        simulated, native = load(text, name), load(text, name)
    except HandlerError as error:
        if any(each in error.what for each in CONVERSION_ERRORS):
            return None
        raise
    inputs = [_input(source) for _ in range(runs)]
    return Case(name, text, simulated, native, inputs)


def _input(source: random.Random) -> dict[str, int]:
    values = {
        name: source.choice((*EDGES, source.getrandbits(64), source.getrandbits(8))) for name in REGISTERS
    }
    readable = (MEMORY, MEMORY + 4000, MEMORY + 4090, MEMORY + source.randrange(MEMORY_SIZE - 200))
    bad = (0, MEMORY + MEMORY_SIZE - 3, MEMORY + MEMORY_SIZE, INACCESSIBLE, 1 << 47, 1 << 63, (1 << 64) - 4)
    for register in ("r8", "r9"):  # where programs read: regs.arg(4), regs.arg(5)
        values[register] = source.choice(readable if source.random() < 0.8 else bad)
    if source.random() < 0.5:
        values["bp"] = source.choice(tuple(FRAMES))
    values["flags"] = ALWAYS_SET | source.getrandbits(12) & FLAGS
    return values


# Machine code


def _run_native(player: Player, cases: Sequence[Case]) -> list[tuple[Case, list[Observed]]]:
    """All handlers placed that are small enough, then each run; what was seen of each run."""
    indexes = itertools.count()
    events: list[EventProgram] = []

    def take_indexes(count: int) -> int:
        return min(itertools.islice(indexes, count))

    engine = PlayerEngine(player)
    handlers = Handlers(cast(Engine, engine), player.counters, take_indexes, events.append)
    player.poke(MEMORY, _memory())
    player.poke(STACK_TOP + 8, struct.pack(f"<{len(WORDS)}Q", *WORDS))
    player.poke(LANDING, LANDS)
    for address, frame in FRAMES.items():
        player.poke(address, struct.pack("<QQ", *frame))
    placed = []
    for number, case in enumerate(cases):
        handler: NativeFunction = case.native["handler"]
        case.address = TEXT + HANDLER_SPACING * number
        case.hits = take_indexes(2)
        case.faults = case.hits + 1
        near = Range(TEXT, TEXT + 1)
        try:
            call = handlers.call(handler, near, case.hits, case.faults, case.address, True)
        except ProbeError as error:
            if error.reason is not errors.HANDLER_TOO_LARGE:
                raise
            continue
        placed.append(case)
        around = player.surroundings(by_thread=number % 3 != 0, tid_offset=0x2D0 if number % 2 else None)
        player.probe(case.address, KEEPS_ALL, [call], around, ALL_LIVE)
    player.run()
    reader = player.reader(*events)
    found = []
    for case in placed:
        observed = []
        player.poke(MEMORY, _memory())
        for values in case.inputs:
            registers = {general(name): value for name, value in values.items() if name != "flags"}
            before = player.counters.totals(case.faults + 1)
            returned = player.call(case.address, **registers, flags=values["flags"])
            after = player.counters.totals(case.faults + 1)
            assert after[case.hits] - before[case.hits] == 1
            assert returned.vectors_kept
            seen: Observed = {
                "fault": after[case.faults] - before[case.faults] == 1,
                "registers": {name: returned.registers[general(name)] for name in REGISTERS},
                "flags": returned.registers["flags"] & FLAGS,
                "red_zone": returned.red_zone_kept,
                "sp": returned.registers["rsp"] - STACK_TOP,
                "events": [_told(event.args) for event in reader.flush()],
                "return_address": struct.unpack("<Q", player.peek(STACK_TOP, 8))[0],
            }
            observed.append(seen)
        observed[-1]["maps"] = _map_contents(case.native)
        observed[-1]["memory"] = player.peek(MEMORY, MEMORY_SIZE)
        found.append((case, observed))
    return found


def _memory() -> bytes:
    texts = b"".join(text.encode() + b"\0" for text in TEXTS)
    return texts + random.Random(1).randbytes(MEMORY_SIZE - len(texts))


def _map_contents(names: Mapping[str, Any]) -> dict[str, Any]:
    """What Python reads in the maps."""
    found = {name: names[name].to_dict() for name in MAP_NAMES}
    # Each module has a structure of its own.
    found["flows"] = {tuple(vars(key).items()): value for key, value in found["flows"].items()}
    found |= {"counter": names["counter"].value, "drops": names["table"].drops}
    return found


# The other two


_MEMORY_BYTES = dict(zip(range(MEMORY, MEMORY + MEMORY_SIZE), _memory(), strict=True))


def _simulate(case: Case, observed: Sequence[Observed], pid: int, *, plain: bool) -> list[Observed]:
    """The runs on a simulated machine, by the interpreter or as plain Python."""
    simulated = Machine(memory=dict(_MEMORY_BYTES), thread=pid, process=pid, name=b"player")
    handler: NativeFunction = case.simulated["handler"]
    found: list[Observed] = []
    with machines.on(simulated):
        for values, native in zip(case.inputs, observed, strict=True):
            start = {**values, "ip": case.address, "sp": STACK_TOP}
            words = (native["return_address"], *WORDS)
            simulated.events.clear()
            simulated.backtrace = _backtrace(case.address, native["return_address"], values["bp"])
            result, why, after = (_plain if plain else _interpret)(handler, start, words)
            lost = bool(result) and after["ip"] == case.address  # true without a place to go on
            result = result and not lost
            if result and after["ip"] == LANDING:
                after["r15"] ^= (1 << 64) - 1
            seen: Observed = {
                "fault": lost or why is not None,
                "events": [
                    {name: getattr(event, name) for name in event.fields} for event in simulated.events
                ],
            }
            if why is None:
                seen["registers"] = {name: after[name] for name in REGISTERS}
                seen["flags"] = after["flags"] & FLAGS
                # The return of the function, or of the one that it went to, or of the handler itself.
                skipped = result and after["ip"] != LANDING
                seen["sp"] = after["sp"] - STACK_TOP if skipped else 8
                seen["left"] = bool(result)
            if not result:  # who goes elsewhere uses two words of it
                seen["red_zone"] = True
            seen["why"] = why
            found.append(seen)
        found[-1]["maps"] = _map_contents(case.simulated)
        found[-1]["memory"] = bytes(simulated.memory[address] for address in _MEMORY_BYTES)
    return found


def _backtrace(address: int, return_address: int, frame: int) -> tuple[int, ...]:
    """What walking finds from a frame pointer."""
    found = [address, return_address]
    before = STACK_TOP
    while frame % 8 == 0 and frame > before and frame in FRAMES and FRAMES[frame][1]:
        before = frame
        frame, caller = FRAMES[frame]
        found.append(caller)
    return tuple(found)


def _told(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """An event's arguments as plain Python has them."""
    return {name: None if value is FAULT else value for name, value in arguments.items()}


def _interpret(
    handler: NativeFunction, start: dict[str, int], words: tuple[int, ...]
) -> tuple[int, str | None, dict[str, int]]:
    frame = interpreter.Frame(dict(start), dict(enumerate(words)))
    try:
        return interpreter.run(handler.representation, frame), None, frame.registers
    except HandlerFault as fault:
        return 0, str(fault), frame.registers


def _plain(
    handler: NativeFunction, start: dict[str, int], words: tuple[int, ...]
) -> tuple[int, str | None, dict[str, int]]:
    registers = Registers(words, **start)
    probe = Probed(start["ip"])
    try:
        result, why = handler(probe, registers), None
    except FAULTS as fault:
        result, why = 0, f"{type(fault).__name__}: {fault}"
    return int(bool(result)), why, {name: int(getattr(registers, name)) for name in start}


@dataclass(frozen=True, slots=True)
class Probed:
    """What plain Python needs of a probe."""

    addr: int


def _compare(case: Case, native: list[Observed], pid: int) -> Tally:
    """Raises Mismatch, which shows the program. Plain Python has no fuel for the loops of maps: where the
    fuel ended the run, it is not compared."""
    interpreted = _simulate(case, native, pid, plain=False)
    ways = {"interpreter": interpreted}
    if all(OUT_OF_FUEL not in (seen["why"] or "") for seen in interpreted):
        ways["plain Python"] = _simulate(case, native, pid, plain=True)
    for way, found in ways.items():
        for number, (mine, theirs) in enumerate(zip(native, found, strict=True)):
            for what in ("fault", "registers", "flags", "sp", "red_zone", "events", "maps", "memory"):
                if what in theirs and (what in mine) and mine[what] != theirs[what]:
                    raise Mismatch(_report(case, way, number, what, mine, theirs))
    return Tally(
        len(native),
        sum(seen["fault"] for seen in native),
        sum(len(seen["events"]) for seen in native),
        sum(seen.get("left", False) for seen in interpreted),
    )


def _report(case: Case, way: str, number: int, what: str, mine: Observed, theirs: Observed) -> str:
    values = {name: hex(value) for name, value in case.inputs[number].items()}
    a, b = mine[what], theirs[what]
    if isinstance(a, dict):
        different = {key for key in a if a[key] != b.get(key)}
        a, b = {key: a[key] for key in different}, {key: b.get(key) for key in different}
    lines = [
        f"{case.name}, run {number}: {what} differs from the {way}'s (why: {theirs['why']})",
        f"machine code: {a}",
        f"{way}: {b}",
        f"arguments: {[values[name] for name in ARGUMENTS]}, all: {values}",
        case.text,
    ]
    return "\n".join(lines)
