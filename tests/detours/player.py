"""Runs detour buffers in a child process (player.c) that has mapped what they need, and reads their output.

A `Player` is a target without ptrace: the shared memory, a process page, an arena with the runtime, rings,
and functions that the test writes. `probe` puts a buffer in front of a function, as an engine would.
"""

from __future__ import annotations

import mmap
import os
import select
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sidestep.arch.x86_64.detour import Action, DetourBuffer, Surroundings, emit_buffer
from sidestep.arch.x86_64.insn import GENERAL_REGISTERS, decode
from sidestep.arch.x86_64.liveness import Liveness, live
from sidestep.arch.x86_64.recording import Rings
from sidestep.arch.x86_64.runtime import RUNTIME_SIZE, Runtime
from sidestep.events import layout
from sidestep.events.clock import Clock
from sidestep.events.counters import Counters
from sidestep.events.decode import EventDecoder
from sidestep.events.reader import EventReader
from sidestep.events.record import EventProgram
from sidestep.spec import parse
from sidestep.target.process.processor import reads_fs_base

SOURCE = Path(__file__).with_name("player.c")
REGISTERS = (*GENERAL_REGISTERS, "flags")
ARENA = 0x20_0000_0000
ARENA_SIZE = 1 << 20
TEXT = 0x20_1000_0000
TEXT_SIZE = 1 << 20
PROCESS_PAGE = ARENA + ARENA_SIZE
DATA = 0x40_0000_0000
RINGS = 0x50_0000_0000
MEMORY = 0x60_0000_0000  # two pages; the page behind is not mapped, the one after that is inaccessible
MEMORY_SIZE = 2 * layout.PAGE_SIZE
STACK = 0x70_0000_0000
STACK_SIZE = 16 * layout.PAGE_SIZE
STACK_TOP = STACK + 8 * layout.PAGE_SIZE + 2048  # where rsp is in calls, unless a test says otherwise
STATUS_FLAGS = 0x8D5
DIRECTION_FLAG = 0x400
ALL_LIVE = Liveness(frozenset(GENERAL_REGISTERS), True, ())


# nopl 0(%rax,%rax,1); ret: a function that changes nothing
KEEPS_ALL = bytes.fromhex("0f1f440000 c3")


def event(index: int, text: str, address: int = TEXT, **options: Any) -> EventProgram:
    """What the probe text records, as the event with that index at `address`."""
    spec = parse(text)
    where = f"{spec.where.symbol}+0x0"
    return EventProgram(
        index, spec.event or "event", where, spec.arguments, spec.condition, address=address, **options
    )


class Returned(NamedTuple):
    """How a call came back: registers, and whether red zone and vector state were as before."""

    registers: dict[str, int]
    red_zone_kept: bool
    vectors_kept: bool


def compile_player(folder: Path) -> Path:
    program = folder / "player"
    subprocess.run(["gcc", "-O2", "-pthread", "-o", program, SOURCE], check=True, timeout=60)
    return program


class Player:
    """A child process; its memory is used through `shared`. To be used in a `with`."""

    def __init__(
        self,
        program: Path,
        *,
        cpu_rings: int = 4,
        thread_rings: int = 2,
        ring_size: int = layout.SMALLEST_RING_SIZE,
    ) -> None:
        self.cpu_rings, self.thread_rings, self.ring_size = cpu_rings, thread_rings, ring_size
        self.ring_count = ring_count = cpu_rings + thread_rings
        self._file = os.memfd_create("sidestep-test")
        size = layout.file_size(ring_count, ring_size)
        os.ftruncate(self._file, size)
        self._mapping = mmap.mmap(self._file, size)
        self.shared = memoryview(self._mapping)
        layout.initialise(self.shared)
        self.counters = Counters(self.shared)
        self._process = subprocess.Popen(
            ["setarch", "-R", program, str(self._file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            pass_fds=(self._file,),
            process_group=0,
        )
        self._next_buffer = ARENA + RUNTIME_SIZE
        self.runtime = Runtime(ARENA, PROCESS_PAGE, DATA, reads_fs_base=reads_fs_base())
        assert self.ask("shared", DATA, layout.DATA_SIZE, 0) == "1"
        for mapping in layout.ring_mappings(ring_count, ring_size):
            assert self.ask("shared", RINGS + mapping.offset, mapping.size, mapping.file_offset) == "1"
        for address, length, kind in (
            (PROCESS_PAGE, layout.PROCESS_PAGE_SIZE, "wipe"),
            (ARENA, ARENA_SIZE, "keep"),
            (TEXT, TEXT_SIZE, "keep"),
            (MEMORY, MEMORY_SIZE, "keep"),
            (MEMORY + MEMORY_SIZE + layout.PAGE_SIZE, layout.PAGE_SIZE, "keep"),
            (STACK, STACK_SIZE, "keep"),
        ):
            assert self.ask("private", address, length, kind) == "1"
        self.ask("protect", MEMORY + MEMORY_SIZE + layout.PAGE_SIZE, layout.PAGE_SIZE)
        self.poke(ARENA, self.runtime.code)
        self.poke(PROCESS_PAGE + layout.THREAD_TABLE_OFFSET, layout.FIRST_THREAD_SLOT)

    @property
    def pid(self) -> int:
        return int(self.ask("tids").split()[0])

    @property
    def rings(self) -> Rings:
        return Rings(RINGS, self.cpu_rings, self.ring_size, threads=self.thread_rings)

    def __enter__(self) -> Player:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self.counters.close()
        self.shared.release()
        os.close(self._file)

    def ask(self, *words: object) -> str:
        """Sends a command of player.c and returns the answer."""
        self.start(*words)
        return self.answer()

    def start(self, *words: object) -> None:
        """Sends a command whose answer comes later."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")

    def answered(self, seconds: float) -> bool:
        """Waits at most so long for an answer; a second time does not matter."""
        return bool(select.select([self._process.stdout], [], [], seconds)[0])

    def answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the player ended ({self._process.wait()})"
        return line.strip()

    def poke(self, address: int, data: bytes) -> None:
        for start in range(0, len(data), 1 << 16):
            self.ask("poke", address + start, data[start : start + (1 << 16)].hex())

    def peek(self, address: int, size: int) -> bytes:
        return bytes.fromhex(self.ask("peek", address, size))

    def surroundings(self, *, by_thread: bool = True, tid_offset: int | None = None) -> Surroundings:
        return Surroundings(self.runtime, by_thread, tid_offset, self.rings)

    def probe(
        self,
        address: int,
        code: bytes,
        actions: Sequence[Action] | Mapping[int, Sequence[Action]],
        surroundings: Surroundings | None = None,
        liveness: Callable[[int], Liveness] | Liveness | None = None,
        size: int = 5,
    ) -> DetourBuffer:
        """Writes the function `code` at `address` with a jump in front.

        The jump takes the whole instructions of the first `size` bytes. `actions` are at the start, or by
        offset.
        """
        instructions = decode(code, address)
        count = 0
        while instructions[count].next_ip < address + size:
            count += 1
        region = instructions[: count + 1]
        by_address = {address + at: list(what) for at, what in _by_offset(actions).items()}
        if liveness is None:
            tell: Callable[[int], Liveness] = lambda at: live(instructions, at)  # noqa: E731
        elif isinstance(liveness, Liveness):
            tell = lambda _: liveness  # noqa: E731
        else:
            tell = liveness
        original = code[: region[-1].next_ip - address]
        buffer = emit_buffer(
            self._next_buffer, region, original, by_address, tell, surroundings or self.surroundings()
        )
        self._next_buffer += len(buffer.code) + 15 & ~15
        self.poke(buffer.address, buffer.code)
        jump = b"\xe9" + (buffer.address - address - 5).to_bytes(4, "little", signed=True)
        self.poke(address, jump + code[5:])
        return buffer

    def run(self) -> None:
        """Makes arena and text executable; nothing can be written there until `edit`."""
        assert self.ask("executable", ARENA, ARENA_SIZE) == "0"
        assert self.ask("executable", TEXT, TEXT_SIZE) == "0"

    def edit(self) -> None:
        """Makes arena and text writable again, and the room for buffers empty."""
        assert self.ask("writable", ARENA, ARENA_SIZE) == "0"
        assert self.ask("writable", TEXT, TEXT_SIZE) == "0"
        self._next_buffer = ARENA + RUNTIME_SIZE

    def call(self, target: int, **registers: int) -> Returned:
        """Calls `target` once, with other registers than the named ones at 0."""
        wanted = {"rsp": STACK_TOP, "flags": 0x202, **registers}
        words = [wanted.get(name, 0) & 0xFFFF_FFFF_FFFF_FFFF for name in REGISTERS]
        numbers = [int(word, 0) for word in self.ask("call", target, *words).split()]
        return Returned(dict(zip(REGISTERS, numbers, strict=False)), bool(numbers[17]), bool(numbers[18]))

    def reader(self, *programs: EventProgram, clock: Clock | None = None) -> EventReader:
        reader = EventReader(self.shared, self.ring_count, self.ring_size, clock or Clock())
        reader.add(EventDecoder(program) for program in programs)
        return reader


def _by_offset(actions: Sequence[Action] | Mapping[int, Sequence[Action]]) -> Mapping[int, Sequence[Action]]:
    return actions if isinstance(actions, Mapping) else {0: actions}
