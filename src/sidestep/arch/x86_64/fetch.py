"""Machine code for fetch arguments: the value of a fetch in rax.

Registers are taken from where the frame keeps them, as they were at the probepoint. Memory is read by the
runtime's `read_word` and `read_memory`, which never fault. Only words in the same page as the stack pointer
are loaded directly: the frame was just written there.

Clobbered: rax, rcx, rdx, r11 and the flags (WORKING_REGISTERS, without the record's pointer).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from sidestep.arch.x86_64.frame import Emission, Frame, Label
from sidestep.arch.x86_64.runtime import Runtime
from sidestep.arch.x86_64.shapes import add, at, lea, mov, movsx, movzx, sar, shl, shr, xor
from sidestep.errors import NOT_SUPPORTED, ProbeError
from sidestep.events.record import REGISTER_ARGUMENTS, EventProgram
from sidestep.spec import (
    Argument,
    Comm,
    Dereference,
    Fetch,
    FetchOperand,
    FetchType,
    Immediate,
    Memory,
    Register,
    ReturnValue,
    StackPointer,
    StackSlot,
    SymbolMemory,
    operands,
)

RECORD_POINTER: Final = "r10"
WORKING_REGISTERS: Final = ("rax", "rcx", "rdx", RECORD_POINTER, "r11")
"""What the code of an event clobbers (rax and rdx hold the tsc, rcx and r11 do not survive system calls)."""

Resolve: TypeAlias = Callable[[SymbolMemory], int]
"""The run-time address that `@SYM+OFFSET` reads, its offset added."""

FaultLabel: TypeAlias = Callable[[], Label]
"""The label to go to from here when memory is not there; asked at each place that needs it."""

_PAGE_SHIFT: Final = 12


def general_register(name: str) -> str:
    """The 64-bit name of a register of pt_regs, other than ip and flags."""
    return name if name[0] == "r" else f"r{name}"


def fetched_registers(program: EventProgram) -> frozenset[str]:
    """The general registers (and "rflags") whose values an event's arguments and condition need."""
    names: set[str] = set()
    for fetch in _all_fetches(program):
        while isinstance(fetch, Dereference):
            fetch = fetch.inner
        match fetch:
            case Register(name=name):
                names.add(general_register(name))
            case Argument(number=number) if number <= len(REGISTER_ARGUMENTS):
                names.add(REGISTER_ARGUMENTS[number - 1])
            case ReturnValue():
                names.add("rax")
            case _:
                pass
    if program.stack_depth:
        names.add("rbp")
    return frozenset(names)


def _all_fetches(program: EventProgram) -> Iterator[Fetch]:
    for argument in program.arguments:
        yield argument.fetch
    if program.condition is not None:
        for operand in operands(program.condition):
            if isinstance(operand, FetchOperand):
                yield operand.fetch


class Fetcher:
    """Emits the code that fetches values for one event at one probepoint."""

    def __init__(
        self, emission: Emission, frame: Frame, runtime: Runtime, program: EventProgram, resolve: Resolve
    ) -> None:
        self._emission, self._assembler = emission, emission.assembler
        self._frame, self._runtime = frame, runtime
        self._program, self._resolve = program, resolve

    def value(self, fetch: Fetch, kind: FetchType, fault: FaultLabel) -> None:
        """rax = the value, extended to 64 bits by its type."""
        self.word(fetch, kind.element_size, fault)
        self.extend(kind)

    def word(self, fetch: Fetch, size: int, fault: FaultLabel) -> None:
        """rax = the value as it is fetched: a whole register, or `size` bytes of memory (8 of a stack)."""
        emit = self._assembler.emit
        match fetch:
            case Register(name="ip"):
                emit(mov("rax", self._program.address))
            case Register(name="flags"):
                emit(mov("rax", self._frame.saved_flags))
            case Register(name="sp") | StackPointer():
                emit(lea("rax", self._frame.program_stack(0)))
            case Register(name=name):
                self.register("rax", general_register(name))
            case Argument(number=number) if number <= len(REGISTER_ARGUMENTS):
                self.register("rax", REGISTER_ARGUMENTS[number - 1])
            case ReturnValue():
                self.register("rax", "rax")
            case Immediate(value=value):
                emit(mov("rax", value))
            case StackSlot() | Argument():
                self._stack_word(fetch, fault)
            case Memory() | SymbolMemory() | Dereference():
                self.address(fetch, fault)
                self._read_word(size, fault)
            case Comm():
                raise ProbeError(self._program.name, NOT_SUPPORTED, "$comm as a number")

    def address(self, fetch: Fetch, fault: FaultLabel) -> None:
        """rax = the address of the memory that a fetch reads in its last step."""
        emit = self._assembler.emit
        match fetch:
            case Memory(address=address):
                emit(mov("rax", address))
            case SymbolMemory():
                emit(mov("rax", self._resolve(fetch)))
            case Dereference(offset=offset, inner=inner):
                self.word(inner, 8, fault)
                if offset:
                    emit(add("rax", offset))
            case StackSlot() | Argument():
                emit(lea("rax", self._frame.program_stack(_stack_offset(fetch))))
            case _:
                raise ProbeError(self._program.name, NOT_SUPPORTED, f"the address of {fetch}")

    def register(self, destination: str, source: str) -> None:
        """`destination` = the program's value of the general register `source`."""
        saved = self._frame.saved(source)
        if saved is not None:
            self._assembler.emit(mov(destination, saved))
        elif source != destination:
            self._assembler.emit(mov(destination, source))

    def untouched_register(self, fetch: Fetch) -> str | None:
        """The register that still holds the fetched value, where one does."""
        match fetch:
            case Register(name=name) if name not in ("ip", "sp", "flags"):
                register = general_register(name)
            case Argument(number=number) if number <= len(REGISTER_ARGUMENTS):
                register = REGISTER_ARGUMENTS[number - 1]
            case _:
                return None
        return None if register in WORKING_REGISTERS else register

    def _stack_word(self, fetch: StackSlot | Argument, fault: FaultLabel) -> None:
        """The word is loaded if its last byte is in the page of the stack pointer, else read with care."""
        emit = self._assembler.emit
        word = self._frame.program_stack(_stack_offset(fetch))
        elsewhere, done = self._emission.new_label(), self._emission.new_label()
        emit(lea("rax", at(word.base, word.displacement + 7)))
        emit(xor("rax", "rsp"))
        emit(shr("rax", _PAGE_SHIFT))
        self._assembler.jump_if("ne", elsewhere)
        emit(mov("rax", word))
        self._assembler.label(done)
        failed = fault()

        def read_elsewhere() -> None:
            self._assembler.label(elsewhere)
            emit(lea("rax", word))
            emit(mov("edx", 8))
            self._assembler.call_to(self._runtime.read_word)
            self._assembler.jump_if("e", done)
            self._assembler.jump(failed)

        self._emission.later(read_elsewhere)

    def _read_word(self, size: int, fault: FaultLabel) -> None:
        """rax = `size` bytes of memory at the address in rax."""
        self._assembler.emit(mov("edx", size))
        self._assembler.call_to(self._runtime.read_word)
        self._assembler.jump_if("ne", fault())

    def extend(self, kind: FetchType) -> None:
        """rax = the word in rax, cut to its type and extended to 64 bits."""
        emit = self._assembler.emit
        if kind.bitfield is not None:
            above = 64 - kind.bitfield.offset - kind.bitfield.width
            if above:
                emit(shl("rax", above))
            if kind.bitfield.width < 64:
                emit((sar if kind.signed else shr)("rax", 64 - kind.bitfield.width))
        elif kind.bits in (8, 16):
            part = {8: "al", 16: "ax"}[kind.bits]
            emit(movsx("rax", part, kind.bits) if kind.signed else movzx("eax", part, kind.bits))
        elif kind.bits == 32:
            emit(movsx("rax", "eax", 32) if kind.signed else mov("eax", "eax"))


def _stack_offset(fetch: StackSlot | Argument) -> int:
    """Bytes above the stack pointer; at a function's entry the return address is at 0."""
    if isinstance(fetch, StackSlot):
        return 8 * fetch.number
    return 8 * (fetch.number - len(REGISTER_ARGUMENTS))
