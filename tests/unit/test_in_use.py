"""Which buffers are in use: what decides whether their places can be given to others."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from sidestep.address import Range
from sidestep.maps import Mapping
from sidestep.target.process.poke import addresses_in_use, in_flight
from sidestep.target.process.process import Window
from sidestep.target.process.ptrace import Registers
from sidestep.target.process.stacks import SEGMENTS, instruction_pointers

ROUTINES = Range(0x10000, 0x10400)
BUFFERS = [Range(0x10400, 0x10440), Range(0x10440, 0x10480)]
STACK = 0x7000_0000
TEXT = 0x40_0000


@dataclass
class FakeThread:
    registers: Registers


@dataclass
class FakeMemory:
    """One stack."""

    content: bytearray = field(default_factory=lambda: bytearray(8192))

    def read_available(self, address: int, size: int) -> bytes:
        return bytes(self.content[address - STACK : address - STACK + size])

    def put(self, address: int, *words: int) -> None:
        struct.pack_into(f"<{len(words)}Q", self.content, address - STACK, *words)


class FakeProcess:
    hides_contexts = False


class FakeWindow:
    def __init__(self, ip: int, stack_pointer: int) -> None:
        self.process, self.memory = FakeProcess(), FakeMemory()
        self.thread = FakeThread(Registers(rip=ip, rsp=stack_pointer))
        self.maps = [Mapping(STACK, STACK + 8192, "rw-p", 0, "00:00", 0, "[stack]")]

    def __iter__(self) -> Iterator[FakeThread]:
        yield self.thread


def in_use(window: FakeWindow) -> set[Range]:
    return in_flight(cast(Window, cast(Any, window)), BUFFERS, [ROUTINES])


def test_a_buffer_that_a_thread_is_in() -> None:
    assert in_use(FakeWindow(BUFFERS[1].start + 5, STACK + 4096)) == {BUFFERS[1]}


def test_a_buffer_that_a_routine_of_ours_returns_into() -> None:
    window = FakeWindow(ROUTINES.start + 0x20, STACK + 4096)
    window.memory.put(STACK + 4096, 0, ROUTINES.start + 0x80, 0, BUFFERS[0].start + 0x21)
    assert in_use(window) == {BUFFERS[0]}


def test_a_routine_that_a_signal_interrupted() -> None:
    """The handler runs lower down on the same stack; its frame has the routine's registers."""
    window = FakeWindow(TEXT, STACK + 1024)
    frame = STACK + 2048
    window.memory.put(frame, STACK + 4096, ROUTINES.start + 0x20, 0x202, 0x33 | 0x2B << 48)
    window.memory.put(STACK + 4096 + 96, BUFFERS[1].start + 0x11)
    assert in_use(window) == {BUFFERS[1]}


def test_words_on_the_stack_of_a_thread_that_is_elsewhere_mean_nothing() -> None:
    window = FakeWindow(TEXT, STACK + 4096)
    window.memory.put(STACK + 4096, BUFFERS[0].start + 0x21)
    assert not in_use(window)
    assert addresses_in_use(cast(Window, cast(Any, window)), [ROUTINES]) == {TEXT}


def test_a_frame_below_one_that_was_found() -> None:
    """The interrupted handler ran on a stack in the same mapping, further down than the next handler."""
    window = FakeWindow(TEXT, STACK + 4096)
    code = 0x33 | 0x2B << 48
    window.memory.put(STACK + 5000, STACK + 1024, TEXT, 0x202, code)
    window.memory.put(STACK + 2048, STACK + 3072, BUFFERS[0].start + 5, 0x202, code)
    assert in_use(window) == {BUFFERS[0]}


RESTORER = 0x50_0000
INSIDE_A_DCR = TEXT + 4


def put_signal_frame(window: FakeWindow, at: int, *, ip: int, returns_to: int, stack_pointer: int) -> None:
    """`at` is where the handler's return address stands; the user context follows."""
    window.memory.put(at, returns_to)
    registers = at + 8 + 40
    window.memory.put(registers + 15 * 8, stack_pointer, ip)
    window.memory.content[registers + 18 * 8 - STACK : registers + 19 * 8 - STACK] = SEGMENTS


def saved(window: FakeWindow, restorer: int | None) -> set[int]:
    return instruction_pointers(cast(Window, cast(Any, window)), restorer)


def test_a_handler_that_will_return_through_the_hook_is_no_obstacle() -> None:
    frame = STACK + 4096
    window = FakeWindow(TEXT + 0x100, frame - 256)
    put_signal_frame(window, frame, ip=INSIDE_A_DCR, returns_to=RESTORER, stack_pointer=STACK + 7000)
    assert saved(window, None) == {INSIDE_A_DCR}
    assert saved(window, RESTORER) == set()
    assert saved(window, RESTORER + 0x1000) == {INSIDE_A_DCR}


def test_a_thread_at_its_frame_may_be_past_the_hook() -> None:
    frame = STACK + 4096
    for pointer in (frame + 8, frame):
        window = FakeWindow(RESTORER + 7, pointer)
        put_signal_frame(window, frame, ip=INSIDE_A_DCR, returns_to=RESTORER, stack_pointer=STACK + 7000)
        assert saved(window, RESTORER) == ({INSIDE_A_DCR} if pointer == frame + 8 else set())


def test_a_thread_at_its_frame_that_was_interrupted_may_be_past_the_hook() -> None:
    """Below its stack pointer the restorer's address stands still, in the red zone."""
    frame, inner = STACK + 5000, STACK + 2000
    window = FakeWindow(TEXT + 0x100, inner - 256)
    put_signal_frame(window, frame, ip=INSIDE_A_DCR, returns_to=RESTORER, stack_pointer=STACK + 7000)
    put_signal_frame(window, inner, ip=RESTORER + 7, returns_to=RESTORER, stack_pointer=frame + 8)
    assert saved(window, RESTORER) == {INSIDE_A_DCR}
