"""Which registers and flags a probe may change, because the program replaces them before it reads them.

The instructions from the probepoint on are followed along every path inside the function. Whatever is not
known counts as live: at calls, returns, indirect jumps, system calls, the function's end, the patience's end.

Registers that a function must preserve (rbx, rbp, r12 - r15) always count as live, even if what comes next
replaces them: an unwinder that starts at a fault in between still needs them. rsp is always live, too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from sidestep.arch.x86_64.effects import ALL_FLAGS, ALL_REGISTERS, REGISTER_BITS, effects
from sidestep.arch.x86_64.insn import FlowControl, Instruction, direct_branch_target

# In the order in which they are best used as scratch: what has no fixed role in an instruction comes first.
SCRATCH_REGISTERS = ("r11", "r10", "rax", "rcx", "rdx", "r9", "r8", "rsi", "rdi")
_CANDIDATES = sum(REGISTER_BITS[name] for name in SCRATCH_REGISTERS)
PATIENCE = 64  # instructions that are looked at for one probepoint


class Liveness(NamedTuple):
    """What must be kept: `registers` (64-bit names), and the status flags if `flags`.

    `dead`: the other registers, in the order in which they are best used as scratch. The direction flag and
    everything else that is neither a general register nor a status flag is always live.
    """

    registers: frozenset[str]
    flags: bool
    dead: tuple[str, ...]


def live(
    instructions: Sequence[Instruction],
    address: int,
    *,
    entry: bool = False,
    patience: int = PATIENCE,
    enough: int = len(SCRATCH_REGISTERS),
) -> Liveness:
    """What is live at `address`, the start of one of `instructions`.

    `instructions` are those of one function in the order of their addresses, without a gap, as many behind
    `address` as are to be looked at. `entry`: control comes to `address` by calls only, where the ABI says
    that the flags hold nothing; they are live then only if an instruction of the function reads them.
    `enough`: when the flags are decided and so many registers (one more if flags are live) were found dead
    before the first branch, no more are looked for.
    """
    index = _index(instructions, address)
    if index is None:
        return _liveness(ALL_REGISTERS | ALL_FLAGS)
    found = 0
    beyond = _CANDIDATES if entry else _CANDIDATES | ALL_FLAGS
    explored: dict[int, int] = {}
    paths = [(index, _CANDIDATES | ALL_FLAGS)]
    is_line = True  # no branch was met yet
    while paths:
        index, undecided = paths.pop()
        while undecided := undecided & ~(found | explored.get(index, 0)):
            if patience == 0 or index == len(instructions):
                found |= undecided & beyond
                break
            patience -= 1
            explored[index] = explored.get(index, 0) | undecided
            instruction = instructions[index]
            step = effects(instruction)
            found |= undecided & step.reads
            undecided &= ~(step.reads | step.replaces)
            if is_line and not undecided & ALL_FLAGS:
                wanted = enough + 1 if found & ALL_FLAGS else enough
                if (_CANDIDATES & ~(found | undecided)).bit_count() >= wanted:
                    found |= undecided
                    break
            flow = instruction.flow_control
            if flow == FlowControl.NEXT:
                index += 1
                continue
            target, is_line = None, False
            if flow in (FlowControl.CONDITIONAL_BRANCH, FlowControl.UNCONDITIONAL_BRANCH):
                target = _index(instructions, direct_branch_target(instruction))
            if target is None:
                found |= undecided & beyond
            if flow == FlowControl.CONDITIONAL_BRANCH:
                if target is not None:
                    paths.append((target, undecided))
                index += 1
            elif target is not None:
                index = target
            else:
                break
    return _liveness(found)


def _index(instructions: Sequence[Instruction], address: int | None) -> int | None:
    if address is None:
        return None
    index = bisect_left(instructions, address, key=_address)
    return index if index < len(instructions) and instructions[index].ip == address else None


def _address(instruction: Instruction) -> int:
    return instruction.ip


@lru_cache(maxsize=4096)
def _liveness(found: int) -> Liveness:
    dead = tuple(name for name in SCRATCH_REGISTERS if not found & REGISTER_BITS[name])
    return Liveness(frozenset(REGISTER_BITS) - frozenset(dead), bool(found & ALL_FLAGS), dead)
