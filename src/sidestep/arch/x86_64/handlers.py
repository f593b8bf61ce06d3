"""Calls of native handlers from detour buffers.

The handler's code is somewhere in an arena, shared by all probes that it serves. It gets the integer
arguments' registers as they are, and in r10 a frame on the stack: the thread's counter block, then a word for
each thing that it asks for. It keeps all registers but rax and r11 (and r10, which is ours) and tells in eax
whether it ended (0), wants to go on elsewhere (1) or had a fault (2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sidestep.arch.x86_64.frame import Emission, Frame
from sidestep.arch.x86_64.recording import CpuNumber, load_cpu, load_tid
from sidestep.arch.x86_64.runtime import Runtime
from sidestep.arch.x86_64.shapes import RET, Memory, and_, at, cmp, inc, lea, mov, rip
from sidestep.events import layout

CLOBBERED: Final = ("rax", "r10", "r11")
DONE, ELSEWHERE, FAULT = 0, 1, 2
CPU_MASK: Final = 0xFFF
INSTRUCTION_POINTER, STACK_POINTER, FLAGS = "ip", "sp", "flags"


@dataclass(frozen=True, slots=True)
class NativeCall:
    """A handler's code in the target. `slots` and `written` are names as compiler/lower.py has them; `faults`
    is the counter of its faults, `hits` that of the probe's hits."""

    hits: int
    faults: int
    code: int
    slots: tuple[str, ...]
    written: tuple[str, ...]
    leaves: bool  # it may ask to go on elsewhere
    address: int  # of the probepoint

    @property
    def saved(self) -> frozenset[str]:
        """The general registers whose values it needs, or that its frame clobbers beside CLOBBERED."""
        needed = {general(name) for name in self.slots if _is_general(name)}
        return frozenset(needed | ({"rcx"} if {"tid", "cpu"}.intersection(self.slots) else set()))

    @property
    def uses_flags(self) -> bool:
        return FLAGS in self.slots


def general(name: str) -> str:
    """The machine's name of one of pt_regs' registers."""
    return name if name[1:].isdigit() else f"r{name}"


def _is_general(name: str) -> bool:
    return not name.startswith("stack") and name not in (
        INSTRUCTION_POINTER, STACK_POINTER, FLAGS, "tid", "pid", "cpu",
    )  # fmt: skip


class CallCompiler:
    """Emits one call, with the frame entered and the block's address in rax."""

    def __init__(
        self,
        emission: Emission,
        frame: Frame,
        runtime: Runtime,
        call: NativeCall,
        tid_offset: int | None,
        cpu_number: CpuNumber,
    ) -> None:
        self._emission, self._assembler, self._frame = emission, emission.assembler, frame
        self._runtime, self._call = runtime, call
        self._tid_offset, self._cpu_number = tid_offset, cpu_number
        self._size = 8 * (1 + len(call.slots))

    def call(self) -> None:
        """The frame, the call, and what follows from its answer."""
        emit, call, frame = self._assembler.emit, self._call, self._frame
        frame.reserve(self._size)
        emit(mov(at("rsp"), "rax"))
        for number, name in enumerate(call.slots, 1):
            self._fill(name, at("rsp", 8 * number))
        saved = frame.saved("rcx")
        if saved is not None:
            emit(mov("rcx", saved))
        emit(mov("r10", "rsp"))
        self._assembler.call_to(call.code)
        emit(cmp("eax", DONE, 32))
        unusual, done = self._emission.new_label(), self._emission.new_label()
        self._assembler.jump_if("ne", unusual)
        self._take_over()
        self._assembler.label(done)
        depth = frame.depth
        frame.release(self._size)

        def later() -> None:
            self._assembler.label(unusual)
            if call.leaves:
                fault = self._emission.new_label()
                emit(cmp("eax", FAULT, 32))
                self._assembler.jump_if("e", fault)
                frame.depth = depth
                self._leave()
                self._assembler.label(fault)
            emit(mov("rax", self._runtime.counters(layout.SHARED_BLOCK) + 8 * call.faults))
            emit(inc(at("rax"), lock=True))
            self._assembler.jump(done)

        self._emission.later(later)

    def _fill(self, name: str, slot: Memory) -> None:
        emit, frame = self._assembler.emit, self._frame
        if name.startswith("stack"):
            emit(mov("r11", frame.program_stack(8 * int(name[5:]))))
        elif name == INSTRUCTION_POINTER:
            emit(mov("r11", self._call.address))
        elif name == STACK_POINTER:
            emit(lea("r11", frame.program_stack(0)))
        elif name == FLAGS:
            emit(mov("r11", frame.saved_flags))
        elif name == "tid":
            load_tid(self._assembler, self._tid_offset)
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
                self._assembler.emit(mov("r11", self._slot(name)))
                self._assembler.emit(mov(self._frame.saved_flags, "r11"))
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

    def _leave(self) -> None:
        """Go on at ip with the stack at sp. The word below the new top of the stack takes the address: at a
        function's entry nothing is there."""
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
