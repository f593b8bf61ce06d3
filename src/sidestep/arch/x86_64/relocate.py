"""Copies the instructions of a DCR to another address so that they do there what they did here.

Whatever an instruction says about its own address is made to say it about the original one: RIP-relative
operands and branch targets keep leading where they led, a call pushes the address behind the original, and
rcx after a `syscall` is that of the original. No register, no flag and nothing below the stack pointer is
changed that the original does not change. Where one instruction becomes several, the only state that is ever
in between is an early push, and a `Point` says so: any moment in the copy can be taken back to the original.

What stays the copy's: the address that an x87 instruction leaves in the x87 state (FIP); what a signal
handler sees in ip; and rcx in a system call that has not returned.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from sidestep.arch.x86_64.insn import (
    Code,
    FlowControl,
    Instruction,
    Mnemonic,
    OpKind,
    Register,
    condition_number,
    direct_branch_target,
    displacement_offset,
    encode,
    is_16_bit_branch,
    is_call,
    is_counted_branch,
    is_syscall,
    memory_base,
    rip_target,
    text,
)
from sidestep.arch.x86_64.shapes import mov, push
from sidestep.arch.x86_64.writer import Assembler, fits_32_bits
from sidestep.errors import NOT_RELOCATABLE, ProbeError, Refusal

_SLOT = 8  # bytes that a call pushes

_REFUSED_MNEMONICS: dict[int, str] = {
    Mnemonic.INT3: "the trap reports its own address",
    Mnemonic.INT1: "the trap reports its own address",
    Mnemonic.INT: "the trap reports its own address",
    Mnemonic.INTO: "the trap reports its own address",
    Mnemonic.UD0: "it is there to fault at its own address",
    Mnemonic.UD1: "it is there to fault at its own address",
    Mnemonic.UD2: "it is there to fault at its own address",
    Mnemonic.XBEGIN: "it starts a transaction that goes back to its own address",
    Mnemonic.SYSENTER: "the kernel returns from it to a fixed address",
    Mnemonic.ENCLU: "the processor keeps its own address for the enclave",
    Mnemonic.LSS: "loading ss holds off traps for the next instruction",
}
_REFUSED_CODES: dict[int, str] = {
    Code.CALL_M1616: "a far call pushes its own code segment and address",
    Code.CALL_M1632: "a far call pushes its own code segment and address",
    Code.CALL_M1664: "a far call pushes its own code segment and address",
    Code.JMP_M1616: "a far jump changes the code segment",
    Code.JMP_M1632: "a far jump changes the code segment",
    Code.JMP_M1664: "a far jump changes the code segment",
}


class Point(NamedTuple):
    """An instruction of the copy at `new`, and what it stands for.

    With `pushed` added to the stack pointer, the state there is the one in which the original program is at
    `old` (8 between the push and the jump of a relocated call, else 0).
    """

    new: int
    old: int
    pushed: int = 0


def relocatable(instruction: Instruction) -> Refusal | None:
    """Why this instruction cannot run at another address; None if it can (as far as its own bytes say)."""
    why = _obstacle(instruction)
    return None if why is None else _refusal(instruction, why)


def region_refusal(instructions: Sequence[Instruction]) -> Refusal | None:
    """`relocatable` for a whole DCR, whose branches must not lead into the middle of its own instructions."""
    for instruction in instructions:
        why = _obstacle(instruction)
        if why is not None:
            return _refusal(instruction, why)
        target = direct_branch_target(instruction)
        if target is None or not instructions[0].ip < target < instructions[-1].next_ip:
            continue
        if all(target != other.ip for other in instructions):
            return _refusal(instruction, "it leads into the middle of an instruction that moves, too")
    return None


class Relocator:
    """Writes the copies of a DCR's instructions into an assembler.

    The caller calls `copy` for every index in order, may write its own code in between, ends with `leave`.
    A branch to an instruction of the DCR other than the first leads to its copy (or to where the caller said
    that control `arrive`s); a branch to the first goes to the original, where the probe is.

    `code` is the DCR's original bytes; without them the instructions are encoded anew, which drops redundant
    prefixes. `led_to` are addresses that the caller's own code will `jump` to. After `leave`:

    `boundaries`: (old, new) for each copied instruction in order, for the address right behind a `syscall`
    (the copy of the next instruction is then a second pair of the same old address), and for the DCR's end.
    `arrivals`: the old address of each instruction, and where control must go that arrives there.
    `points`: every instruction of the copies, by rising addresses.
    """

    def __init__(
        self,
        assembler: Assembler,
        instructions: Sequence[Instruction],
        code: bytes | None = None,
        led_to: Collection[int] = (),
    ) -> None:
        self.assembler = assembler
        self.instructions = instructions
        self.boundaries: list[tuple[int, int]] = []
        self.arrivals: dict[int, int] = {}
        self.points: list[Point] = []
        self._refusal = region_refusal(instructions)
        self._start = instructions[0].ip
        self._end = instructions[-1].next_ip
        self._code = code
        targets = (*map(direct_branch_target, instructions), *led_to)
        self._has_inner_branches = any(target and self._is_inside(target) for target in targets)

    def arrive(self, index: int) -> None:
        """Control that reaches instruction `index` by a branch comes here; `copy` says so if nobody did."""
        old = self.instructions[index].ip
        if old not in self.arrivals:
            assembler = self.assembler
            here = assembler.label((self, old)) if self._has_inner_branches else assembler.here
            self.arrivals[old] = here

    def copy(self, index: int) -> None:
        """Emit instruction `index`. ProbeError NOT_RELOCATABLE: it (or the whole DCR) cannot run here."""
        instruction = self.instructions[index]
        if self._refusal is not None:
            raise ProbeError(f"{self._start:#x}", self._refusal.reason, self._refusal.detail)
        self.arrive(index)
        here = self.assembler.here
        self.boundaries.append((instruction.ip, here))
        self.points.append(Point(here, instruction.ip))
        flow = instruction.flow_control
        if flow == FlowControl.NEXT or flow == FlowControl.RETURN:
            self._copy_bytes(instruction)
        elif flow == FlowControl.UNCONDITIONAL_BRANCH:
            self.jump(instruction.near_branch_target)
        elif flow == FlowControl.CONDITIONAL_BRANCH:
            self._copy_conditional(instruction)
        elif is_call(instruction):
            self._copy_call(instruction)
        elif is_syscall(instruction):
            self._copy_syscall(instruction)
        else:
            self._copy_bytes(instruction)

    def leave(self) -> None:
        """Behind the last copy: jump back to the original code behind the DCR."""
        self.boundaries.append((self._end, self.assembler.here))
        self._point(self._end)
        self.assembler.jump_to(self._end)

    def original(self, new: int) -> Point | None:
        """What the copy's instruction at the address `new` stands for; None if none starts there."""
        for point in self.points:
            if point.new == new:
                return point
        return None

    def _point(self, old: int, pushed: int = 0) -> None:
        self.points.append(Point(self.assembler.here, old, pushed))

    def _is_inside(self, target: int) -> bool:
        return self._start < target < self._end

    def jump(self, target: int) -> None:
        """Jump to where control must go that leads to an address."""
        if self._is_inside(target):
            self.assembler.jump((self, target))
        else:
            self.assembler.jump_to(target)

    def _bytes(self, instruction: Instruction) -> bytes:
        if self._code is None:
            return encode(instruction, instruction.ip)
        return self._code[instruction.ip - self._start : instruction.next_ip - self._start]

    def _copy_bytes(self, instruction: Instruction) -> None:
        target = rip_target(instruction)
        if target is None:
            self.assembler.raw(self._bytes(instruction))
            return
        # Prefixes apart, both encodings are the same: the displacement has the same distance from the end.
        distance = len(encode(instruction, instruction.ip)) - displacement_offset()
        code = self._bytes(instruction)
        displacement = target - (self.assembler.here + len(code))
        if memory_base(instruction) == "eip":  # the address is cut to 32 bits: everything is in reach
            displacement = (displacement + 0x8000_0000) % (1 << 32) - 0x8000_0000
        elif not fits_32_bits(displacement):
            raise _out_of_reach(instruction)
        place = len(code) - distance
        self.assembler.raw(code[:place] + displacement.to_bytes(4, "little", signed=True) + code[place + 4 :])

    def _copy_conditional(self, instruction: Instruction) -> None:
        target = instruction.near_branch_target
        if is_counted_branch(instruction):
            self._copy_counted(instruction)
        elif self._is_inside(target):
            self.assembler.jump_if(condition_number(instruction), (self, target))
        else:
            self.assembler.jump_if_to(condition_number(instruction), target)
            self._island_points(target)

    def _island_points(self, target: int) -> None:
        """Where a target was too far, a short jump skips an absolute one: at that one the branch is taken."""
        here = self.assembler.here
        if here - self.points[-1].new > 6:
            self.points.append(Point(self.points[-1].new + 2, target))

    def _copy_counted(self, instruction: Instruction) -> None:
        """`loop target` becomes `loop 1f; jmp 2f; 1: jmp target; 2:`, as it only reaches 128 bytes."""
        assembler = self.assembler
        behind = (self, instruction.ip, "behind")
        assembler.raw(encode(instruction, instruction.near_branch_target)[:-1] + b"\x05")
        self._point(instruction.next_ip)
        assembler.jump(behind)
        self._point(instruction.near_branch_target)
        self.jump(instruction.near_branch_target)
        assembler.label(behind)

    def _copy_call(self, instruction: Instruction) -> None:
        """Push the address behind the original, then jump."""
        return_address = instruction.next_ip
        literal = (self, instruction.ip, "return address")
        if return_address >> 31:
            self.assembler.relative(b"\xff\x35", literal)  # push literal(%rip)
        else:
            self.assembler.emit(push(return_address))
        self._point(instruction.ip, _SLOT)
        target = direct_branch_target(instruction)
        if target is not None:
            self.jump(target)
        else:
            self._jump_through(instruction)
        if return_address >> 31:
            self.assembler.label(literal)
            self.assembler.raw(return_address.to_bytes(8, "little"))

    def _jump_through(self, instruction: Instruction) -> None:
        """Jump to where an indirect call leads, once its return address is pushed."""
        jump = instruction.copy()
        jump.code = Code.JMP_RM64
        if instruction.op0_kind == OpKind.MEMORY and memory_base(instruction) in ("rsp", "esp"):
            bits = _address_bits(instruction)
            displacement = _stack_displacement(instruction) + _SLOT
            jump.memory_displacement = displacement & (1 << bits) - 1
            jump.memory_displ_size = 1 if -128 <= displacement <= 127 else bits // 8
        try:
            self.assembler.emit(jump)
        except ValueError:
            raise _out_of_reach(instruction) from None

    def _copy_syscall(self, instruction: Instruction) -> None:
        """The processor puts the next address into rcx: the copy's, which nobody shall see."""
        self.assembler.raw(b"\x0f\x05")
        self.boundaries.append((instruction.next_ip, self.assembler.here))
        self._point(instruction.next_ip)
        self.assembler.emit(mov("rcx", instruction.next_ip))


def _obstacle(instruction: Instruction) -> str | None:
    if instruction.is_privileged:
        return "it needs the privilege of the kernel"
    why = _REFUSED_MNEMONICS.get(instruction.mnemonic)
    if why is not None:
        return why
    flow = instruction.flow_control
    if flow == FlowControl.NEXT:
        loads_ss = instruction.op0_register == Register.SS
        return _REFUSED_MNEMONICS[Mnemonic.LSS] if loads_ss else None
    if is_16_bit_branch(instruction):
        return "its 66 prefix cuts the target to 16 bits"
    if flow == FlowControl.INDIRECT_CALL and instruction.op0_kind == OpKind.REGISTER:
        if instruction.op0_register == Register.RSP:
            return "it calls into the stack that it pushes to"
    elif flow == FlowControl.INDIRECT_CALL and _reads_its_slot(instruction):
        return "it calls through the place that it pushes to"
    return _REFUSED_CODES.get(instruction.code)


def _reads_its_slot(instruction: Instruction) -> bool:
    """A call through [rsp-15] .. [rsp-1]: the return address would overwrite the pointer to the target.

    With an index register, a displacement from rsp up is taken to stay above it, as all of a frame does.
    """
    if memory_base(instruction) not in ("rsp", "esp"):
        return False
    displacement = _stack_displacement(instruction)
    return displacement < 0 and (displacement > -2 * _SLOT or int(instruction.memory_index) != Register.NONE)


def _address_bits(instruction: Instruction) -> int:
    return 32 if memory_base(instruction) == "esp" else 64


def _stack_displacement(instruction: Instruction) -> int:
    bits = _address_bits(instruction)
    displacement = instruction.memory_displacement
    return displacement - (1 << bits) if displacement >> bits - 1 else displacement


def _refusal(instruction: Instruction, why: str) -> Refusal:
    return Refusal(NOT_RELOCATABLE, f"`{text(instruction)}` at {instruction.ip:#x}: {why}")


def _out_of_reach(instruction: Instruction) -> ProbeError:
    refusal = _refusal(instruction, "its operand is more than 2 GiB away from the detour")
    return ProbeError(f"{instruction.ip:#x}", refusal.reason, refusal.detail)
