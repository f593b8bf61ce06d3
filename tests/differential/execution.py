"""Runs machine code in a child process (execute.c) and tells the states it ended in.

A case is two runs of code at chosen addresses from chosen registers. Both start from the same memory, vector
and x87 contents; the child compares what they did to these and reports registers and signal of each.
"""

from __future__ import annotations

import random
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).with_name("execute.c")
REGISTERS = (
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi",
    "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "flags",
)  # fmt: skip
SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV, SIGALRM, SIGVTALRM = 4, 5, 7, 8, 11, 14, 26
STATUS_FLAGS = 0x8D5  # OF SF ZF AF PF CF
DIRECTION_FLAG = 0x400

_AREA_SIZE = 1 << 16
_HEADER = struct.Struct("<6Q")
_CODES = 4
_CASE = struct.Struct(f"<{_CODES * 3 + 2 * 18 + 4 * 2 + 2}Q")
EMPTY_PIPE = 100  # a descriptor of the child; reading from it blocks
_RESULT = struct.Struct(f"<{2 * (6 + 17) + 3}Q")


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the original code, the relocated code and the memory are."""

    original: int
    copy: int
    memory: int
    area_size: int = _AREA_SIZE
    memory_size: int = 1 << 14

    @property
    def stack(self) -> int:
        """The middle of the upper half of the memory: where rsp points in most runs."""
        return self.memory + self.memory_size * 3 // 4

    @property
    def data(self) -> int:
        """The middle of the lower half of the memory."""
        return self.memory + self.memory_size // 4


LOW = Layout(0x123_4000, 0x345_6000, 0x567_8000)
HIGH = Layout(0x5555_5123_4000, 0x5555_6345_6000, 0x5555_4567_8000)
FAR = Layout(0x5555_5123_4000, 0x7A00_0345_6000, 0x5555_4567_8000)
# Return addresses of 32 bits and more whose push extends the sign.
MIDDLE = Layout(0x9123_4000, 0xA345_6000, 0x8567_8000)
# Return addresses whose low half has its sign bit set, and a copy below the original.
SIGNED = Layout(0x5555_F123_4000, 0x5555_C345_6000, 0x5555_E567_8000)


class Run(NamedTuple):
    start: int
    registers: tuple[int, ...]  # in the order of REGISTERS


@dataclass(slots=True)
class Case:
    """`code`: up to three (address, bytes). `pokes`: up to four (address, 64-bit value) put into the memory.

    `replacement`: (address, bytes) that are put over the code for the second run. `alarm`: microseconds after
    which SIGALRM ends a run, 0 for never.
    """

    code: Sequence[tuple[int, bytes]]
    runs: tuple[Run, Run]
    seed: int = 0
    pokes: Sequence[tuple[int, int]] = ()
    replacement: tuple[int, bytes] | None = None
    alarm: int = 0


class End(NamedTuple):
    """How a run ended: siginfo's signal, code and address; trap number and error code; the registers."""

    signal: int
    code: int
    fault_address: int
    trap: int
    error: int
    ip: int
    registers: tuple[int, ...]

    def register(self, name: str) -> int:
        return self.registers[REGISTERS.index(name)]


class Result(NamedTuple):
    """Both ends, and how the rest differs.

    `vectors` has a bit for each component of the extended state that differs, `memory` is the range of
    addresses from the first differing byte to the last.
    """

    ends: tuple[End, End]
    vectors: int
    memory: range


def compile_harness(folder: Path) -> Path:
    program = folder / "execute"
    subprocess.run(["gcc", "-O1", "-o", program, SOURCE], check=True, timeout=60)
    return program


def memory_contents(layout: Layout, seed: int) -> bytes:
    """Words that instructions find interesting: addresses of code and data, small numbers, random bits."""
    source = random.Random(seed)
    words = []
    for _ in range(layout.memory_size // 8):
        kind = source.random()
        if kind < 0.4:
            words.append(layout.original + source.randrange(0x3000))  # below all code
        elif kind < 0.6:
            words.append(layout.data + source.randrange(-1024, 1024))
        elif kind < 0.75:
            words.append(source.randrange(256))
        else:
            words.append(source.getrandbits(64))
    return struct.pack(f"<{len(words)}Q", *words)


def execute(
    program: Path, folder: Path, layout: Layout, cases: Sequence[Case], seed: int = 0, timeout: float = 50
) -> list[Result]:
    """Run the cases. CalledProcessError, TimeoutExpired: the child did not come to their end."""
    blob = bytearray()
    records = bytearray()
    for case in cases:
        numbers: list[int] = []
        nothing = (layout.original, b"")
        pieces = [*case.code, *[nothing] * (_CODES - 1 - len(case.code)), case.replacement or nothing]
        for address, code in pieces:
            numbers += [address, len(blob), len(code)]
            blob += code
        for run in case.runs:
            numbers += [run.start, *run.registers]
        for index in range(4):
            numbers += case.pokes[index] if index < len(case.pokes) else (0, 0)
        records += _CASE.pack(*numbers, case.seed, case.alarm)
    header = _HEADER.pack(
        len(cases), layout.original, layout.copy, layout.area_size, layout.memory, layout.memory_size
    )
    input_file, output_file = folder / "cases", folder / "results"
    input_file.write_bytes(header + memory_contents(layout, seed) + records + blob)
    subprocess.run(
        [program, input_file, output_file], check=True, timeout=timeout, start_new_session=True,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return [_result(numbers) for numbers in _RESULT.iter_unpack(output_file.read_bytes())]


def _result(numbers: tuple[int, ...]) -> Result:
    first, second = (End(*part[:6], part[6:]) for part in (numbers[:23], numbers[23:46]))
    vectors, low, high = numbers[46:]
    return Result((first, second), vectors, range(low, high + 1) if low else range(0))


def random_registers(source: random.Random, layout: Layout) -> dict[str, int]:
    """Registers that mostly make operands lead into the memory: addresses, small numbers, random bits."""
    registers = {}
    for name in REGISTERS:
        kind = source.random()
        if name == "rsp":
            value = layout.stack + 8 * source.randrange(-64, 64)
            if kind < 0.5:
                value &= ~63
        elif name == "flags":
            value = 0x202 | (source.getrandbits(12) & STATUS_FLAGS)
            if kind < 0.1:
                value |= DIRECTION_FLAG
        elif kind < 0.55:
            value = layout.data + 8 * source.randrange(-128, 128)
            if kind < 0.3:
                value &= ~63
        elif kind < 0.8:
            value = source.randrange(5)
        elif kind < 0.9:
            value = source.choice((-1, -8, 1 << 31, (1 << 31) - 1, 1 << 63, 0xFFFF_FFFF, 255, 1 << 40))
        else:
            value = source.getrandbits(64)
        registers[name] = value & 0xFFFF_FFFF_FFFF_FFFF
    return registers


def run_from(start: int, registers: dict[str, int]) -> Run:
    return Run(start, tuple(registers[name] for name in REGISTERS))
