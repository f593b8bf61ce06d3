"""Calls of native handlers from detour buffers.

The handler's code is somewhere in an arena, shared by all probes that it serves, or in the buffer if it is
short. It gets the integer arguments' registers as they are, and in r10 the thread's counter block; or, if it
asks for more, a frame on the stack: the block's address, then a word for each thing. It keeps all registers
but rax and r11 (and r10, which is ours) and tells in rax whether it ended (0), wants to go on elsewhere (1)
or had a fault (bit 1; the rest says which, as compiler/faults.py has it).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from sidestep.arch.x86_64.frame import Emission, Frame, Label
from sidestep.arch.x86_64.insn import (
    FlowControl,
    Instruction,
    condition_number,
    decode,
    direct_branch_target,
)
from sidestep.arch.x86_64.recording import CPU_MASK, CpuNumber, load_cpu, load_tid
from sidestep.arch.x86_64.runtime import Runtime
from sidestep.arch.x86_64.shapes import RET, Memory, and_, at, cmp, inc, lea, mov, or_, rip, sub, test
from sidestep.events import layout

CLOBBERED: Final = ("rax", "r10", "r11")
DONE, ELSEWHERE, FAULT = 0, 1, 2
CHANGEABLE_FLAGS: Final = 0xCD5  # CF PF AF ZF SF DF OF: no other means something to a program
LONGEST_INLINE: Final = 192  # bytes
LARGEST_RETURN: Final = 256  # bytes of stack that a function's return takes off: its address, and arguments
INSTRUCTION_POINTER, STACK_POINTER, FLAGS, ENTRY = "ip", "sp", "flags", "entry"


@dataclass(frozen=True, slots=True)
class NativeCall:
    """A handler's code in the target. `slots` and `written` are names as compiler/lower.py has them; `faults`
    is the counter of its faults, `hits` that of the probe's hits.

    `inline`: its instructions, where they are few and can stand in a buffer.
    """

    hits: int
    faults: int
    code: int
    slots: tuple[str, ...]
    written: tuple[str, ...]
    arguments: tuple[str, ...]  # the arguments' registers that it reads where they are
    leaves: bool  # it may ask to go on elsewhere
    answers: bool  # what it returns may be something else than 0
    address: int  # of the probepoint
    at_entry: bool  # a call has just pushed the return address
    inline: tuple[Instruction, ...] | None = None
    exits: tuple[int, ...] | None = None  # where it may go on, if that is known

    @property
    def goes_within(self) -> bool:
        """It leaves elsewhere than at a function's entry: to the instructions of its region, and behind
        them."""
        return self.leaves and not self.at_entry

    @property
    def saved(self) -> frozenset[str]:
        """The general registers whose values it needs, or that its frame clobbers beside CLOBBERED."""
        needed = {general(name) for name in (*self.slots, *self.arguments) if _is_general(name)}
        return frozenset(needed | ({"rcx"} if {"tid", "cpu"}.intersection(self.slots) else set()))

    @property
    def uses_flags(self) -> bool:
        return FLAGS in self.slots


def general(name: str) -> str:
    """The machine's name of one of pt_regs' registers."""
    return name if name[1:].isdigit() else f"r{name}"


def _is_general(name: str) -> bool:
    return not name.startswith("stack") and name not in (
        INSTRUCTION_POINTER, STACK_POINTER, FLAGS, ENTRY, "tid", "pid", "cpu",
    )  # fmt: skip


def inlined(code: bytes, address: int) -> tuple[Instruction, ...] | None:
    """The instructions of a handler, if they are few and can stand in a buffer."""
    if len(code) > LONGEST_INLINE:
        return None
    found = tuple(decode(code, address))
    starts = {instruction.ip for instruction in found}
    for instruction in found:
        target = direct_branch_target(instruction)
        jumps = instruction.flow_control in (FlowControl.UNCONDITIONAL_BRANCH, FlowControl.CONDITIONAL_BRANCH)
        if instruction.is_invalid or instruction.is_ip_rel_memory_operand:
            return None
        if jumps != (target is not None) or (target is not None and target not in starts):
            return None
    return found


def emit_inline(emission: Emission, instructions: Sequence[Instruction]) -> None:
    """A handler in a buffer: its returns go on behind it."""
    assembler = emission.assembler
    labels = {target: emission.new_label() for each in instructions if (target := direct_branch_target(each))}
    end = emission.new_label()
    for instruction in instructions:
        if instruction.ip in labels:
            assembler.label(labels[instruction.ip])
        target = direct_branch_target(instruction)
        if instruction.flow_control == FlowControl.RETURN:
            if instruction is not instructions[-1]:
                assembler.jump(end)
        elif target is None:
            assembler.emit(instruction)
        elif instruction.flow_control == FlowControl.UNCONDITIONAL_BRANCH:
            assembler.jump(labels[target])
        else:
            assembler.jump_if(condition_number(instruction), labels[target])
    assembler.label(end)


class CallCompiler:
    """Emits one call, with the frame entered and the block's address in r10."""

    def __init__(
        self,
        emission: Emission,
        frame: Frame,
        runtime: Runtime,
        call: NativeCall,
        tid_offset: int | None,
        cpu_number: CpuNumber,
        count_others: Callable[[], None],
        go_on: Callable[[int], None],
    ) -> None:
        """`go_on` emits a jump to an instruction of the region, or behind it."""
        self._emission, self._assembler, self._frame = emission, emission.assembler, frame
        self._runtime, self._call = runtime, call
        self._tid_offset, self._cpu_number = tid_offset, cpu_number
        self._count_others, self._go_on = count_others, go_on
        self._size = 8 * (1 + len(call.slots)) if call.slots else 0

    def call(self) -> None:
        """The frame, the call, and what follows from its answer."""
        emit, call, frame = self._assembler.emit, self._call, self._frame
        if call.slots:
            self._make_frame()
        for name in call.arguments:  # what ran before may have used or changed them
            if (saved := frame.saved(general(name))) is not None:
                emit(mov(general(name), saved))
        if call.inline is None:
            self._assembler.call_to(call.code)
        else:
            emit_inline(self._emission, call.inline)
        if not call.answers:
            self._take_over()
            frame.release(self._size)
            return
        emit(cmp("eax", DONE, 32))
        unusual, done = self._emission.new_label(), self._emission.new_label()
        self._assembler.jump_if("ne", unusual)
        self._take_over()
        self._assembler.label(done)
        depth = frame.depth
        frame.release(self._size)

        def later() -> None:
            self._assembler.label(unusual)
            fault, error = self._emission.new_label(), self._emission.new_label()
            exits = {each: self._emission.new_label() for each in self._exits}
            emit(test("eax", FAULT, 32))
            self._assembler.jump_if("ne", fault)
            frame.depth = depth
            if call.leaves:
                emit(mov("r11", self._slot(INSTRUCTION_POINTER)))
                for place, leave in exits.items():
                    emit(mov("rax", call.address if place is None else place))
                    emit(cmp("r11", "rax"))
                    self._assembler.jump_if("ne" if place is None else "e", leave)
            self._assembler.label(error)
            # It returned true and did not say where to go on: an error of the handler, taken as false.
            self._take_over()
            emit(mov("eax", FAULT))
            self._assembler.label(fault)
            emit(mov("r11", self._runtime.data + layout.last_fault_offset(call.faults)))
            emit(mov(at("r11"), "rax"))
            emit(mov("rax", self._runtime.counters(layout.SHARED_BLOCK) + 8 * call.faults))
            emit(inc(at("rax"), lock=True))
            self._assembler.jump(done)
            for place, leave in exits.items():
                self._assembler.label(leave)
                frame.depth = depth
                if place is None:
                    self._check_stack_pointer(error)
                self._count_others()
                self._leave() if place is None else self._leave_to(place)

        self._emission.later(later)

    @property
    def _exits(self) -> tuple[int | None, ...]:
        """The places where it may go on; None: wherever it says."""
        if not self._call.goes_within:
            return (None,) if self._call.leaves else ()
        assert self._call.exits is not None
        return tuple(place for place in self._call.exits if place != self._call.address)

    def _make_frame(self) -> None:
        emit, frame = self._assembler.emit, self._frame
        frame.reserve(self._size)
        emit(mov(at("rsp"), "r10"))
        for number, name in enumerate(self._call.slots, 1):
            self._fill(name, at("rsp", 8 * number))
        emit(mov("r10", "rsp"))

    def _fill(self, name: str, slot: Memory) -> None:
        emit, frame = self._assembler.emit, self._frame
        if name.startswith("stack"):
            emit(mov("r11", frame.program_stack(8 * int(name[5:]))))
        elif name == INSTRUCTION_POINTER:
            emit(mov("r11", self._call.address))
        elif name == ENTRY:
            emit(mov("r11d", int(self._call.at_entry)))
        elif name == STACK_POINTER:
            emit(lea("r11", frame.program_stack(0)))
        elif name == FLAGS:
            emit(mov("r11", frame.saved_flags))
        elif name == "tid":
            load_tid(self._emission, self._runtime, self._tid_offset, at("rsp"))
            emit(mov("r11d", "eax"))
        elif name == "pid":
            emit(mov("r11", rip(self._runtime.process_page_pointer)))
            emit(mov("r11d", at("r11", layout.PROCESS_PID_OFFSET)))
        elif name == "cpu":
            load_cpu(self._assembler, self._cpu_number)
            emit(and_("ecx", CPU_MASK))
            emit(mov("r11d", "ecx"))
        else:
            register = general(name)
            saved = frame.saved(register)
            if saved is None:
                emit(mov(slot, register))
                return
            emit(mov("r11", saved))
        emit(mov(slot, "r11"))

    def _take_over(self) -> None:
        """Registers that the handler changed, but for where to go on."""
        for name in self._call.written:
            if name in (INSTRUCTION_POINTER, STACK_POINTER):
                continue
            if name == FLAGS:
                emit, saved_flags = self._assembler.emit, self._frame.saved_flags
                emit(mov("r11d", self._slot(name)))
                emit(and_("r11d", CHANGEABLE_FLAGS))
                emit(and_(saved_flags, ~CHANGEABLE_FLAGS))
                emit(or_(saved_flags, "r11"))
                continue
            register = general(name)
            slot, saved = self._slot(name), self._frame.saved(register)
            if saved is None:
                self._assembler.emit(mov(register, slot))
            else:
                self._assembler.emit(mov("r11", slot))
                self._assembler.emit(mov(saved, "r11"))

    def _slot(self, name: str) -> Memory:
        return at("rsp", 8 * (1 + self._call.slots.index(name)))

    def _check_stack_pointer(self, error: Label) -> None:
        """The stack can only be given back, and not beyond what a function may have got of it."""
        if STACK_POINTER in self._call.written:
            emit = self._assembler.emit
            emit(mov("rax", self._slot(STACK_POINTER)))
            emit(lea("r11", self._frame.program_stack(0)))
            emit(sub("rax", "r11"))
            emit(cmp("rax", LARGEST_RETURN))
            self._assembler.jump_if("a", error)

    def _leave_to(self, place: int) -> None:
        """Go on at a place that is known, with the stack as it was: not a word of it is touched."""
        self._take_over()
        self._frame.release(self._size)
        self._frame.leave()
        self._go_on(place)

    def _leave(self) -> None:
        """Go on at ip with the stack at sp, which is not lower than it was. The word below the new top takes
        the address: at a function's entry nothing is there."""
        emit, frame = self._assembler.emit, self._frame
        self._take_over()
        if STACK_POINTER in self._call.written:
            emit(mov("rax", self._slot(STACK_POINTER)))
        else:
            emit(lea("rax", frame.program_stack(0)))
        emit(mov("r11", self._slot(INSTRUCTION_POINTER)))
        emit(mov(at("rax", -8), "r11"))
        emit(lea("rax", at("rax", -8)))
        # What is saved is popped first; where the stack goes then waits above it, in the red zone.
        emit(mov(frame.program_stack(-16), "rax"))
        frame.release(self._size)
        frame.leave()
        emit(mov("rsp", at("rsp", -16)))
        self._assembler.raw(RET)
