"""How much stack compiled code uses: found by following the stack pointer through its instructions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from sidestep.arch.x86_64.insn import (
    FlowControl,
    Instruction,
    Mnemonic,
    OpKind,
    Register,
    decode,
    direct_branch_target,
    is_call,
)
from sidestep.events.layout import WORD

STACK_POINTER = Register.RSP
IMMEDIATES = (OpKind.IMMEDIATE8TO64, OpKind.IMMEDIATE32TO64)


class UnknownStack(ValueError):
    """An instruction does something to the stack pointer that is not followed."""


def stack_use(code: bytes, entry: int, functions: Collection[int], routines: int) -> int:
    """Bytes below the return address of the function at `entry`, its callees' included.

    `functions` are the offsets of the functions in `code`; those beside the one at `entry` call only each
    other, each at most once on any way. `routines` bytes are what a callee elsewhere needs. Raises
    UnknownStack.
    """
    instructions = {each.ip: each for each in decode(code, 0)}
    own, calls = _follow(instructions, entry)
    others = sum(_follow(instructions, start)[0] + WORD for start in functions if start != entry)
    return max(own, calls + WORD + max(routines, others) if calls >= 0 else 0)


def _follow(instructions: Mapping[int, Instruction], start: int) -> tuple[int, int]:
    """The most that a function itself has on the stack, and the most that it has at a call (-1: no call)."""
    depths = {start: 0}
    waiting = [start]
    most, at_call = 0, -1
    while waiting:
        instruction = instructions[waiting.pop()]
        depth = behind = depths[instruction.ip]
        if is_call(instruction):
            at_call = max(at_call, depth)
        else:
            behind += _growth(instruction)
        most = max(most, behind)
        for successor in _successors(instruction):
            if depths.get(successor, behind) != behind or successor not in instructions:
                raise UnknownStack(f"{instruction}")
            if successor not in depths:
                depths[successor] = behind
                waiting.append(successor)
    return most, at_call


def _successors(instruction: Instruction) -> Iterator[int]:
    flow = instruction.flow_control
    if flow == FlowControl.INDIRECT_BRANCH:
        raise UnknownStack(f"{instruction}")
    if flow not in (FlowControl.UNCONDITIONAL_BRANCH, FlowControl.RETURN, FlowControl.EXCEPTION):
        yield instruction.next_ip
    target = direct_branch_target(instruction)
    if target is not None and not is_call(instruction):
        yield target


def _growth(instruction: Instruction) -> int:
    """By how many bytes an instruction moves the stack pointer down."""
    if instruction.is_stack_instruction:
        return -instruction.stack_pointer_increment
    if instruction.op_count == 0 or instruction.op0_register != STACK_POINTER:
        return 0
    mnemonic = instruction.mnemonic
    if mnemonic == Mnemonic.LEA and instruction.memory_base == STACK_POINTER and not instruction.memory_index:
        return -signed(instruction.memory_displacement)
    if mnemonic in (Mnemonic.ADD, Mnemonic.SUB) and instruction.op1_kind in IMMEDIATES:
        amount = signed(instruction.immediate(1))
        return amount if mnemonic == Mnemonic.SUB else -amount
    raise UnknownStack(f"{instruction}")


def signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
