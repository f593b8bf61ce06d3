"""System call filters (seccomp): classic BPF programs, run with values that are partly unknown.

They read `struct seccomp_data`: <linux/seccomp.h>, <linux/filter.h>. An argument that is not known before
counts as any value: both ways of a jump that depends on it are followed, and what is computed from it is not
known either. So the answers of a filter are all that it can give, and maybe some that it cannot. Programs are
data of the target: any bytes may come.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from sidestep.target.process.calls import Call

AUDIT_ARCH_X86_64 = 0xC000003E
DATA_SIZE = 64  # of struct seccomp_data
ACTION_MASK = 0xFFFF0000
LOG, ALLOW = 0x7FFC0000, 0x7FFF0000
KILL_THREAD = 0
_WORD = 0xFFFFFFFF
_MOST_STATES = 20_000

# Classes, modes, operations and operands of instruction codes, from <linux/bpf_common.h>.
_LD, _LDX, _ST, _STX, _ALU, _JMP, _RET, _MISC = range(8)
_IMM, _ABS, _MEM, _LEN = 0x00, 0x20, 0x60, 0x80
_DIV, _NEG, _MOD = 0x30, 0x80, 0x90
_JA, _JEQ, _JGT, _JGE, _JSET = 0x00, 0x10, 0x20, 0x30, 0x40
_BY_X, _RETURNS_A, _TXA = 0x08, 0x10, 0x80


class Instruction(NamedTuple):
    """struct sock_filter."""

    code: int
    if_true: int
    if_false: int
    k: int


Program: TypeAlias = tuple[Instruction, ...]


def decode(raw: bytes) -> Program:
    """Eight bytes each: the code, two jump offsets, the constant."""
    return tuple(Instruction(*fields) for fields in struct.iter_unpack("<HBBI", raw[: len(raw) // 8 * 8]))


class _State(NamedTuple):
    """Where a filter is, its accumulator, index register and scratch memory."""

    at: int
    a: int | None
    x: int | None
    memory: tuple[int | None, ...]


def answers(program: Program, call: Call) -> set[int | None]:
    """Every value that a filter may return for a call. None: one that is not known, or the program is too
    complicated, or none that the kernel accepts."""
    found: set[int | None] = set()
    waiting = [_State(0, 0, 0, (0,) * 16)]
    seen = set(waiting)
    while waiting:
        state = waiting.pop()
        if state.at >= len(program) or len(seen) > _MOST_STATES:
            return {None}
        instruction = program[state.at]
        if instruction.code & 7 == _RET:
            found.add(state.a if instruction.code & 0x18 == _RETURNS_A else instruction.k)
            continue
        if _may_divide_by_zero(instruction, state):
            found.add(KILL_THREAD)
        fresh = [following for following in _step(instruction, state, call) if following not in seen]
        seen.update(fresh)
        waiting += fresh
    return found


def _step(instruction: Instruction, state: _State, call: Call) -> Sequence[_State]:
    """Where an instruction that does not return leads. Jumps lead forward only, so every program ends."""
    code, _, _, k = instruction
    kind, mode, slot = code & 7, code & 0xE0, k & 15
    following = state._replace(at=state.at + 1)
    if kind == _JMP:
        return _jump(instruction, state)
    if kind == _LD:
        value = _load(call, k) if mode == _ABS else _constant(mode, k, state)
        return [following._replace(a=value)]
    if kind == _LDX:
        return [following._replace(x=_constant(mode, k, state))]
    if kind in (_ST, _STX):
        stored = state.a if kind == _ST else state.x
        return [following._replace(memory=(*state.memory[:slot], stored, *state.memory[slot + 1 :]))]
    if kind == _MISC:
        return [following._replace(a=state.x) if code & 0xF8 == _TXA else following._replace(x=state.a)]
    return [following._replace(a=_calculate(code & 0xF0, state.a, _operand(instruction, state)))]


def _operand(instruction: Instruction, state: _State) -> int | None:
    return state.x if instruction.code & _BY_X else instruction.k


def _constant(mode: int, k: int, state: _State) -> int | None:
    return {_IMM: k, _MEM: state.memory[k & 15], _LEN: DATA_SIZE}.get(mode)


def _load(call: Call, offset: int) -> int | None:
    """A word of struct seccomp_data: nr, arch, instruction_pointer, args[6]."""
    if offset == 0:
        return call.number
    if offset == 4:
        return AUDIT_ARCH_X86_64
    index, byte = divmod(offset - 16, 8)
    if offset < 16 or byte % 4 or index >= len(call.arguments):
        return None
    argument = call.arguments[index]
    return None if argument is None else argument >> 8 * byte & _WORD


def _may_divide_by_zero(instruction: Instruction, state: _State) -> bool:
    """That ends a filter with 0."""
    divides = instruction.code & 7 == _ALU and instruction.code & 0xF0 in (_DIV, _MOD)
    return divides and not _operand(instruction, state)


def _calculate(operation: int, a: int | None, operand: int | None) -> int | None:
    if a is None or (operand is None and operation != _NEG):
        return None
    other = operand or 0
    match operation:
        case 0x00:
            result = a + other
        case 0x10:
            result = a - other
        case 0x20:
            result = a * other
        case 0x30:
            result = a // other if other else 0
        case 0x40:
            result = a | other
        case 0x50:
            result = a & other
        case 0x60:
            result = a << (other & 31)
        case 0x70:
            result = a >> (other & 31)
        case 0x80:
            result = -a
        case 0x90:
            result = a % other if other else 0
        case 0xA0:
            result = a ^ other
        case _:
            return None
    return result & _WORD


def _jump(instruction: Instruction, state: _State) -> Sequence[_State]:
    code, if_true, if_false, k = instruction
    after, kind = state.at + 1, code & 0xF0
    if kind == _JA:
        return [state._replace(at=after + k)]
    a, operand = state.a, _operand(instruction, state)
    taken, passed = state._replace(at=after + if_true), state._replace(at=after + if_false)
    if a is None or operand is None:
        return [taken, passed]
    holds = {_JEQ: a == operand, _JGT: a > operand, _JGE: a >= operand, _JSET: bool(a & operand)}
    return [taken if holds.get(kind) else passed]
