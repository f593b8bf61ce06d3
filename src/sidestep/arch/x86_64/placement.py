"""Which instructions a jump replaces: the detoured code region (DCR) of one insertion address.

Only what the bytes themselves say is decided here; whether anything leads into the region is decided in
`safety`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from sidestep.address import Range
from sidestep.arch.x86_64.code import FunctionCode
from sidestep.arch.x86_64.computed_jumps import writes
from sidestep.arch.x86_64.insn import (
    FlowControl,
    Instruction,
    Mnemonic,
    OpKind,
    can_fault,
    decode,
    direct_branch_target,
    falls_through,
    general_register,
    is_call,
    text,
)
from sidestep.arch.x86_64.relocate import relocatable
from sidestep.errors import CALL_IN_REGION, INDIRECT_JUMP, NOT_DECODABLE, TOO_SHORT, Refusal
from sidestep.events.layout import JUMP_SIZE

ENDBR64_SIZE = 4
_PAGE = 4096
_LONGEST_INSTRUCTION = 15

# mov $15,%rax (or %eax); syscall: what a signal handler returns to. Unwinders know the frame by these
# bytes.
_SIGNAL_RETURN_TAIL = b"\x0f\x00\x00\x00\x0f\x05"
_SIGNAL_RETURN_HEADS = (b"\x48\xc7\xc0", b"\xb8")


class Cover(NamedTuple):
    """Whole instructions from `start` on that a jump there would replace.

    `end` is at least `start + JUMP_SIZE`; the bytes between the last instruction and `end` are padding that
    nothing executes. `inner`: where instructions and padding start, the first left out. `is_straight`: no
    instruction but the last one leads anywhere but to the next.
    """

    start: int
    end: int
    instructions: tuple[Instruction, ...]
    inner: list[int]
    is_straight: bool = True
    is_padded: bool = False

    @property
    def has_inner_branches(self) -> bool:
        """An instruction of the region leads to another one of it, not the first."""
        if self.is_straight and direct_branch_target(self.instructions[-1]) is None:
            return False
        end = self.instructions[-1].next_ip
        return any(
            (target := direct_branch_target(instruction)) is not None and self.start < target < end
            for instruction in self.instructions
        )

    @property
    def crosses_page(self) -> bool:
        return self.start % _PAGE > _PAGE - JUMP_SIZE


def describe(instruction: Instruction) -> str:
    """The instruction and its address, for messages."""
    return f"`{text(instruction)}` at {instruction.ip:#x}"


def cover(code: FunctionCode, index: int, until: int = 0) -> Cover | Refusal:
    """The whole instructions from number `index` on that have five bytes, with padding if need be; more of
    them if number `until` is behind those."""
    boundaries = code.boundaries
    start = end = boundaries[index]
    taken: list[Instruction] = []
    is_straight = True
    while True:
        if not code.decode_to(end):
            return _cover_padding(code, taken) if end >= code.end else _undecodable(code)
        instruction = code.instructions[index]
        refusal = relocatable(instruction)
        if refusal is not None:
            return refusal
        if taken and is_endbr64(instruction):
            return Refusal(
                INDIRECT_JUMP, f"{describe(instruction)} marks a place that computed jumps lead to"
            )
        taken.append(instruction)
        index += 1
        end = boundaries[index]
        if end - start >= JUMP_SIZE and index > until:
            inner = [each.ip for each in taken[1:]]
            return Cover(start, end, tuple(taken), inner, is_straight)
        if instruction.flow_control != FlowControl.NEXT:
            if is_call(instruction):
                # Its return address would lie inside the jump.
                return Refusal(CALL_IN_REGION, describe(instruction))
            if not falls_through(instruction):
                return _cover_padding(code, taken)
            is_straight = False


def _cover_padding(code: FunctionCode, taken: Sequence[Instruction]) -> Cover | Refusal:
    """Complete the cover with the padding behind its last instruction, inside the function or behind it."""
    start, last = taken[0].ip, taken[-1]
    end = last.next_ip
    inside = code.code[end - code.start :][: JUMP_SIZE + _LONGEST_INSTRUCTION]
    available = inside + code.gap[: JUMP_SIZE + _LONGEST_INSTRUCTION]
    padding: list[Instruction] = []
    for instruction in decode(available, end):
        if end - start >= JUMP_SIZE or not is_padding(instruction):
            break
        padding.append(instruction)
        end = instruction.next_ip
    if end - start < JUMP_SIZE:
        return Refusal(TOO_SHORT, f"{describe(last)} ends {last.next_ip - start} bytes behind {start:#x}")
    # If control goes on into the padding, its instructions move, too.
    moved = (*taken, *padding) if falls_through(last) else tuple(taken)
    for instruction in moved[len(taken) :]:
        refusal = relocatable(instruction)
        if refusal is not None:
            return refusal
    inner = [each.ip for each in (*taken[1:], *padding)]
    return Cover(start, end, moved, inner, is_straight=False, is_padded=True)


def _undecodable(code: FunctionCode) -> Refusal:
    return Refusal(NOT_DECODABLE, f"{undecodable_bytes(code)} at {code.reach:#x}")


def undecodable_bytes(code: FunctionCode) -> str:
    """The first bytes of the function that are no instruction, as hexadecimal digits."""
    offset = code.reach - code.start
    return code.code[offset : offset + 8].hex(" ") or "the end of its code"


def is_endbr64(instruction: Instruction) -> bool:
    return bool(instruction.mnemonic == Mnemonic.ENDBR64)


def is_padding(instruction: Instruction) -> bool:
    """What compilers and linkers fill up with: nop of any length, int3."""
    return instruction.mnemonic in (Mnemonic.NOP, Mnemonic.INT3)


def faulting(instructions: Sequence[Instruction]) -> Instruction | None:
    """The first of `instructions` that may fault."""
    return next((instruction for instruction in instructions if can_fault(instruction)), None)


def signal_returns(code: bytes, start: int) -> list[Range]:
    """Where `code` (at address `start`) holds the instructions that return from a signal handler."""
    found = []
    at = code.find(_SIGNAL_RETURN_TAIL)
    while at >= 0:
        for head in _SIGNAL_RETURN_HEADS:
            if code.endswith(head, 0, at):
                found.append(Range(start + at - len(head), start + at + len(_SIGNAL_RETURN_TAIL)))
                break
        at = code.find(_SIGNAL_RETURN_TAIL, at + 1)
    return found


# What C libraries do between the labels that their handler of pthread_cancel compares the interrupted
# instruction pointer with: look whether the thread was cancelled, move the arguments of
# `f(&flag, number, ...)` to where the kernel takes them, call it. musl has `test %eax,%eax` there, glibc from
# 2.41 on `testb $n,(%rdi)`.
_CANCELLABLE_CALL = re.compile(
    rb"\x8b\x07"  # mov (%rdi),%eax
    rb"(?:\x85\xc0|\xf6\x07.)"
    rb"(?:\x75.|\x0f\x85....)"  # jne
    rb"\x49\x89\xfb\x48\x89\xf0\x48\x89\xd7\x48\x89\xce\x4c\x89\xc2\x4d\x89\xca"
    rb"\x4c\x8b\x44\x24\x08\x4c\x8b\x4c\x24\x10\x4c\x89\x5c\x24\x08"
    rb"\x0f\x05\xc3",  # syscall; ret
    re.DOTALL,
)


def cancellable_calls(code: bytes, start: int) -> list[Range]:
    """Where `code` (at address `start`) holds the instructions that a handler of pthread_cancel knows by
    their addresses, with the first byte behind them: there goes musl's handler from within."""
    found = _CANCELLABLE_CALL.finditer(code)
    return [Range(start + each.start(), start + each.end() + 1) for each in found]


# Linux system calls after which control is not simply behind the instruction in the same process, on the
# same stack.
_LEAVING_CALLS = {15: "rt_sigreturn", 56: "clone", 58: "vfork", 435: "clone3"}


def leaving_system_call(code: FunctionCode, instruction: Instruction) -> str | None:
    """The name of the system call, if the `syscall` instruction is for rt_sigreturn, clone, vfork or clone3.

    The number is the constant that was last moved into rax before it. Where the number is no constant (the
    `syscall()` function) the call may run in a copy: a child that clone makes there finds the same copy in
    its memory and goes on behind it.
    """
    index = code.index_containing(instruction.ip)
    wanted = "rax"
    for before in reversed(code.instructions[:index]):
        if not writes(before, wanted):
            continue
        if before.mnemonic == Mnemonic.MOV and before.op1_kind in _IMMEDIATES:
            return _LEAVING_CALLS.get(before.immediate(1) & 0xFFFFFFFF)
        source = general_register(before.op1_register) if before.op1_kind == OpKind.REGISTER else None
        if before.mnemonic == Mnemonic.MOV and source is not None:
            wanted = source
            continue
        return None
    return None


_IMMEDIATES = (OpKind.IMMEDIATE8, OpKind.IMMEDIATE32, OpKind.IMMEDIATE64, OpKind.IMMEDIATE32TO64)
