"""The instruction shapes that hand-written templates need, as bytes.

`mov("rax", at("rsp", 8))` is AT&T's `mov 8(%rsp),%rax`: the destination comes first. Operands are register
names, integers and `Memory`; the width is that of the register, or `bits` where there is none. Results are
cached: templates ask for the same few hundred shapes again and again. A shape with a RIP-relative operand is
a `RipRelative`, since its bytes depend on where it will run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

from sidestep.arch.x86_64.insn import (
    GENERAL_REGISTERS,
    Code,
    Instruction,
    MemoryOperand,
    displacement_offset,
    encode,
    register,
    register_bits,
)

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _cached(function: Callable[_P, _R]) -> Callable[_P, _R]:
    return cast(Callable[_P, _R], lru_cache(maxsize=2048)(function))


class Memory(NamedTuple):
    """A memory operand; with the base "rip", `displacement` is the absolute address."""

    base: str = "none"
    displacement: int = 0
    index_register: str = "none"
    scale: int = 1
    segment: str = "none"


class RipRelative(NamedTuple):
    """An instruction with a RIP-relative operand: its bytes, the place of its displacement, its target."""

    code: bytes
    offset: int
    target: int

    def at(self, address: int) -> bytes:
        """The bytes to run at `address`. ValueError: the target is beyond 2 GiB."""
        displacement = self.target - address - len(self.code)
        if not -0x8000_0000 <= displacement <= 0x7FFF_FFFF:
            raise ValueError(f"{self.target:#x} is out of reach from {address:#x}")
        head, tail = self.code[: self.offset], self.code[self.offset + 4 :]
        return head + displacement.to_bytes(4, "little", signed=True) + tail


Piece = bytes | RipRelative
Operand = str | int | Memory


@_cached
def at(base: str, displacement: int = 0, index: str = "none", scale: int = 1) -> Memory:
    return Memory(base, displacement, index, scale)


def rip(address: int) -> Memory:
    """The absolute address, as a RIP-relative operand."""
    return Memory("rip", address)


@_cached
def fs(displacement: int, base: str = "none") -> Memory:
    """A thread-local address: relative to the fs base."""
    return Memory(base, displacement, segment="fs")


@_cached
def register_number(name: str) -> int:
    """The number of a 64-bit general register in encodings. ValueError: no such register."""
    return GENERAL_REGISTERS.index(name)


# Two operands


@_cached
def mov(destination: Operand, source: Operand, bits: int = 64) -> Piece:
    """A move; an immediate into a 64-bit register takes the shortest form that holds it."""
    if isinstance(source, int):
        if isinstance(destination, str):
            return _mov_constant(destination, source)
        width = _width(destination, source, bits)
        return _build(f"MOV_RM{width}_IMM{min(width, 32)}", destination, _signed(source, min(width, 32)))
    return _two("MOV", destination, source, bits)


@_cached
def movzx(destination: str, source: Operand, bits: int) -> Piece:
    """Load `bits` (8 or 16) and extend with zeros into a 32- or 64-bit register."""
    return _build(f"MOVZX_R{register_bits(destination)}_RM{bits}", destination, source)


@_cached
def movsx(destination: str, source: Operand, bits: int) -> Piece:
    """Load `bits` (8, 16 or 32) and extend with the sign into a 32- or 64-bit register."""
    name = "MOVSXD" if bits == 32 else "MOVSX"
    return _build(f"{name}_R{register_bits(destination)}_RM{bits}", destination, source)


@_cached
def lea(destination: str, source: Memory) -> Piece:
    return _build(f"LEA_R{register_bits(destination)}_M", destination, source)


@_cached
def add(destination: Operand, source: Operand, bits: int = 64, *, lock: bool = False) -> Piece:
    return _arithmetic("ADD", destination, source, bits, lock)


@_cached
def sub(destination: Operand, source: Operand, bits: int = 64, *, lock: bool = False) -> Piece:
    return _arithmetic("SUB", destination, source, bits, lock)


@_cached
def and_(destination: Operand, source: Operand, bits: int = 64, *, lock: bool = False) -> Piece:
    return _arithmetic("AND", destination, source, bits, lock)


@_cached
def or_(destination: Operand, source: Operand, bits: int = 64, *, lock: bool = False) -> Piece:
    return _arithmetic("OR", destination, source, bits, lock)


@_cached
def xor(destination: Operand, source: Operand, bits: int = 64) -> Piece:
    return _arithmetic("XOR", destination, source, bits, False)


@_cached
def cmp(destination: Operand, source: Operand, bits: int = 64) -> Piece:
    return _arithmetic("CMP", destination, source, bits, False)


@_cached
def test(destination: Operand, source: str | int, bits: int = 64) -> Piece:  # noqa: PT028
    if isinstance(source, int):
        width = _width(destination, source, bits)
        immediate = min(width, 32)
        return _build(f"TEST_RM{width}_IMM{immediate}", destination, _signed(source, immediate))
    return _two("TEST", destination, source, bits)


@_cached
def shl(destination: Operand, count: int, bits: int = 64) -> Piece:
    return _build(f"SHL_RM{_width(destination, count, bits)}_IMM8", destination, count)


@_cached
def shr(destination: Operand, count: int, bits: int = 64) -> Piece:
    return _build(f"SHR_RM{_width(destination, count, bits)}_IMM8", destination, count)


@_cached
def sar(destination: Operand, count: int, bits: int = 64) -> Piece:
    return _build(f"SAR_RM{_width(destination, count, bits)}_IMM8", destination, count)


@_cached
def imul(destination: str, source: Operand) -> Piece:
    width = register_bits(destination)
    return _build(f"IMUL_R{width}_RM{width}", destination, source)


@_cached
def xchg(destination: Operand, source: str) -> Piece:
    """Exchange; with memory it is locked by itself."""
    return _two("XCHG", destination, source, 64)


@_cached
def xadd(destination: Operand, source: str, *, lock: bool = False) -> Piece:
    return _two("XADD", destination, source, 64, lock)


@_cached
def cmpxchg(destination: Operand, source: str, *, lock: bool = False) -> Piece:
    """Store `source` if the destination equals (r)ax, else load it into (r)ax; ZF says which."""
    return _two("CMPXCHG", destination, source, 64, lock)


@_cached
def cmov(condition: str, destination: str, source: Operand) -> Piece:
    width = register_bits(destination)
    return _build(f"CMOV{condition.upper()}_R{width}_RM{width}", destination, source)


# One operand


@_cached
def inc(destination: Operand, bits: int = 64, *, lock: bool = False) -> Piece:
    return _build(f"INC_RM{_width(destination, 0, bits)}", destination, lock=lock)


@_cached
def dec(destination: Operand, bits: int = 64, *, lock: bool = False) -> Piece:
    return _build(f"DEC_RM{_width(destination, 0, bits)}", destination, lock=lock)


@_cached
def neg(destination: Operand, bits: int = 64) -> Piece:
    return _build(f"NEG_RM{_width(destination, 0, bits)}", destination)


@_cached
def not_(destination: Operand, bits: int = 64) -> Piece:
    return _build(f"NOT_RM{_width(destination, 0, bits)}", destination)


@_cached
def set_if(condition: str, destination: Operand) -> Piece:
    """Set a byte to 1 if the condition holds, else to 0."""
    return _build(f"SET{condition.upper()}_RM8", destination)


@_cached
def push(source: Operand) -> Piece:
    """Push a 64-bit register, 64 bits of memory, or a 32-bit immediate extended by its sign."""
    if isinstance(source, str):
        return _build("PUSH_R64", source)
    if isinstance(source, int):
        return _build("PUSHQ_IMM8" if -128 <= source <= 127 else "PUSHQ_IMM32", source)
    return _build("PUSH_RM64", source)


@_cached
def pop(destination: str | Memory) -> Piece:
    return _build("POP_R64" if isinstance(destination, str) else "POP_RM64", destination)


@_cached
def jump_through(target: str | Memory) -> Piece:
    return _build("JMP_RM64", target)


@_cached
def call_through(target: str | Memory) -> Piece:
    return _build("CALL_RM64", target)


# No operand

PUSHF = b"\x9c"
POPF = b"\x9d"
LAHF = b"\x9f"  # SF ZF AF PF CF into ah
SAHF = b"\x9e"
SETO_AL = b"\x0f\x90\xc0"
RESTORE_OVERFLOW = b"\x04\x7f"  # add $0x7f,%al: sets OF again if al was 1, before sahf
RDTSC = b"\x0f\x31"
RDTSCP = b"\x0f\x01\xf9"
SYSCALL = b"\x0f\x05"
RET = b"\xc3"
NOP = b"\x90"
INT3 = b"\xcc"
UD2 = b"\x0f\x0b"
CLD = b"\xfc"
PAUSE = b"\xf3\x90"
REP_MOVSB = b"\xf3\xa4"
REP_STOSQ = b"\xf3\x48\xab"


def _arithmetic(name: str, destination: Operand, source: Operand, bits: int, lock: bool) -> Piece:
    if not isinstance(source, int):
        return _two(name, destination, source, bits, lock)
    width = _width(destination, source, bits)
    value = _signed(source, min(width, 32))
    form = "IMM8" if -128 <= value <= 127 else f"IMM{min(width, 32)}"
    return _build(f"{name}_RM{width}_{form}", destination, value, lock=lock)


def _two(name: str, destination: Operand, source: Operand, bits: int, lock: bool = False) -> Piece:
    width = _width(destination, source, bits)
    form = f"R{width}_RM{width}" if isinstance(source, Memory) else f"RM{width}_R{width}"
    return _build(f"{name}_{form}", destination, source, lock=lock)


def _width(destination: Operand, source: Operand, bits: int) -> int:
    for operand in (destination, source):
        if isinstance(operand, str):
            return register_bits(operand)
    return bits


def _signed(value: int, bits: int) -> int:
    """The same `bits` read as a signed number. ValueError: they do not hold `value`."""
    if not -(1 << bits - 1) <= value < 1 << bits:
        raise ValueError(f"{value:#x} does not fit {bits} bits")
    return value - (1 << bits) if value >> bits - 1 > 0 else value


def _mov_constant(destination: str, value: int) -> Piece:
    bits = register_bits(destination)
    if bits < 64:
        return _build(f"MOV_R{bits}_IMM{bits}", destination, _signed(value, bits))
    number = register_number(destination)
    wide, low = bytes((0x48 | number >> 3,)), bytes((0xB8 | number & 7,))
    value &= 0xFFFF_FFFF_FFFF_FFFF
    if value < 1 << 32:  # the upper half becomes zero
        return (b"\x41" if number >= 8 else b"") + low + value.to_bytes(4, "little")
    if value >= (1 << 64) - (1 << 31):
        return wide + bytes((0xC7, 0xC0 | number & 7)) + (value & 0xFFFF_FFFF).to_bytes(4, "little")
    return wide + low + value.to_bytes(8, "little")


def _build(code_name: str, *operands: Operand, lock: bool = False) -> Piece:
    for index, operand in enumerate(operands):
        if isinstance(operand, Memory) and operand.base == "rip":
            others = operands[:index], operands[index + 1 :]
            code, offset = _encoded(code_name, (*others[0], Memory("rip"), *others[1]), lock)
            return RipRelative(code, offset, operand.displacement)
    return _encoded(code_name, operands, lock)[0]


@_cached
def _encoded(code_name: str, operands: tuple[Operand, ...], lock: bool) -> tuple[bytes, int]:
    """The bytes, and where the displacement stands in them (0 if there is none)."""
    kinds: list[str] = []
    values: list[Any] = []
    for operand in operands:
        if isinstance(operand, str):
            kinds.append("reg")
            values.append(register(operand))
        elif isinstance(operand, int):
            kinds.append("i32")
            values.append(operand)
        else:
            kinds.append("mem")
            values.append(_memory_operand(operand))
    create = getattr(Instruction, "create_" + "_".join(kinds))
    instruction: Instruction = create(getattr(Code, code_name), *values)
    instruction.has_lock_prefix = lock
    return encode(instruction, 0), displacement_offset()


def _memory_operand(memory: Memory) -> MemoryOperand:
    base, index = register(memory.base), register(memory.index_register)
    size = 8 if memory.displacement or memory.base in ("none", "rip") else 0
    if size and memory.base not in ("none", "rip") and -128 <= memory.displacement <= 127:
        size = 1
    segment = register(memory.segment)
    return MemoryOperand(base, index, memory.scale, memory.displacement, size, False, segment)
