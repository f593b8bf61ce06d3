"""Machine code for conditions: jumps that are taken when a condition holds, or when it does not.

All values have 64 bits. A condition that needs memory which is not there does not hold, whatever surrounds
it. What an argument of the event reads from memory is read once: the condition and the record see the same
value.
"""

from __future__ import annotations

from typing import Final

from sidestep.arch.x86_64.fetch import Fetcher
from sidestep.arch.x86_64.frame import Emission, Frame, Label
from sidestep.arch.x86_64.shapes import Memory as MemoryOperand
from sidestep.arch.x86_64.shapes import add, and_, at, cmp, lea, mov, or_, sub, test, xor
from sidestep.errors import NOT_SUPPORTED, ProbeError
from sidestep.events.record import EventProgram, can_fault
from sidestep.spec import (
    Arithmetic,
    Comparison,
    Condition,
    FetchOperand,
    FetchType,
    Logical,
    Name,
    Not,
    Number,
    Operand,
    operands,
)

_MOST_KEPT: Final = 4  # values on the stack
_DEEPEST: Final = 4  # intermediate results on the stack
_FAULTED: Final = 16  # bit of the first kept value's fault in the state word; bit 0 says that it was read

# By operator: the condition of a jump for signed and for unsigned numbers.
_JUMPS: Final = {
    "==": ("e", "e"),
    "!=": ("ne", "ne"),
    "<": ("l", "b"),
    "<=": ("le", "be"),
    ">": ("g", "a"),
    ">=": ("ge", "ae"),
}
_OPPOSITE: Final = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_SHIFTS: Final = {
    "<<": b"\x48\xd3\xe0",  # shl %cl,%rax
    ">>": b"\x48\xd3\xe8",  # shr %cl,%rax
    "signed >>": b"\x48\xd3\xf8",  # sar %cl,%rax
}
_OPERATIONS: Final = {"+": add, "-": sub, "&": and_, "|": or_, "^": xor}


class KeptValues:
    """Stack slots for what the condition reads from memory and the record will want, too.

    A state word says which of them were read, and which could not be. Beyond a few slots, values are read
    anew.
    """

    def __init__(self, emission: Emission, frame: Frame, fetcher: Fetcher, program: EventProgram) -> None:
        self._emission, self._frame, self._fetcher = emission, frame, fetcher
        self._arguments = program.arguments
        names = () if program.condition is None else operands(program.condition)
        wanted = {name.index for name in names if isinstance(name, Name)}
        kept = [index for index in sorted(wanted) if can_fault(program.arguments[index].fetch)][:_MOST_KEPT]
        self._slots = {index: number for number, index in enumerate(kept)}
        self._bottom = 0

    @property
    def size(self) -> int:
        return 8 * (len(self._slots) + 1) if self._slots else 0

    def enter(self) -> None:
        """Takes the stack for the slots, with none of them read."""
        self._frame.reserve(self.size)
        self._bottom = self._frame.depth
        if self._slots:
            self._emission.assembler.emit(mov(self._state, 0))

    def leave(self) -> None:
        self._frame.release(self.size)

    def word(self, index: int, fault: Label) -> None:
        """rax = the word of the argument; as Fetcher.word, but at most once."""
        argument, slot = self._arguments[index], self._slots.get(index)
        if slot is None:
            self._fetcher.word(argument.fetch, argument.type.element_size, lambda: fault)
            return
        assembler, emission = self._emission.assembler, self._emission
        known, failed, done = emission.new_label(), emission.new_label(), emission.new_label()
        value = at("rsp", self._frame.depth - self._bottom + 8 * (slot + 1))
        state = self._state
        assembler.emit(test(state, 1 << slot, 32))
        assembler.jump_if("ne", known)
        self._fetcher.word(argument.fetch, argument.type.element_size, lambda: failed)
        assembler.emit(mov(value, "rax"))
        assembler.emit(or_(state, 1 << slot, 32))
        assembler.label(done)

        def seldom() -> None:
            assembler.label(failed)
            assembler.emit(or_(state, 1 << slot | 1 << slot + _FAULTED, 32))
            assembler.jump(fault)
            assembler.label(known)
            assembler.emit(test(state, 1 << slot + _FAULTED, 32))
            assembler.jump_if("ne", fault)
            assembler.emit(mov("rax", value))
            assembler.jump(done)

        emission.later(seldom)

    @property
    def _state(self) -> MemoryOperand:
        return at("rsp", self._frame.depth - self._bottom)


class ConditionCompiler:
    """Emits the code that decides an event's condition; `failed` is where to go when memory is not there."""

    def __init__(
        self,
        emission: Emission,
        frame: Frame,
        fetcher: Fetcher,
        kept: KeptValues,
        program: EventProgram,
        failed: Label,
    ) -> None:
        self._emission, self._assembler = emission, emission.assembler
        self._frame, self._fetcher, self._kept = frame, fetcher, kept
        self._program, self._failed = program, failed
        self._depth = frame.depth

    def jump_unless(self, condition: Condition, target: Label) -> None:
        """Falls through if the condition holds."""
        self._branch(condition, target, when=False)

    def _branch(self, condition: Condition, target: Label, *, when: bool) -> None:
        """Jumps to `target` if the condition is `when`, else falls through."""
        match condition:
            case Not(term=term):
                self._branch(term, target, when=not when)
            case Logical(operator=operator, terms=terms):
                decides = operator == "||"  # one term of this value decides it all
                skip = self._emission.new_label()
                for term in terms[:-1]:
                    self._branch(term, target if when == decides else skip, when=decides)
                self._branch(terms[-1], target, when=when)
                self._assembler.label(skip)
            case Comparison():
                self._both(condition.left, condition.right)
                self._assembler.emit(cmp("rax", "rcx"))
                signed, unsigned = _JUMPS[condition.operator if when else _OPPOSITE[condition.operator]]
                self._assembler.jump_if(signed if condition.signed else unsigned, target)
            case _:
                self._operand(condition)
                self._assembler.emit(test("rax", "rax"))
                self._assembler.jump_if("ne" if when else "e", target)

    def _operand(self, operand: Operand) -> None:
        """rax = the value."""
        match operand:
            case Number(value=value):
                self._assembler.emit(mov("rax", value))
            case Name(index=index, type=kind):
                self._check_number(kind)
                self._kept.word(index, self._fault())
                self._fetcher.extend(kind)
            case FetchOperand(fetch=fetch, type=kind):
                self._check_number(kind)
                self._fetcher.value(fetch, kind, self._fault)
            case Arithmetic(operator=operator, left=left, right=right):
                self._both(left, right)
                if operator == ">>" and operand.signed:
                    self._assembler.raw(_SHIFTS["signed >>"])
                elif operator in _SHIFTS:
                    self._assembler.raw(_SHIFTS[operator])
                else:
                    self._assembler.emit(_OPERATIONS[operator]("rax", "rcx"))

    def _both(self, left: Operand, right: Operand) -> None:
        """rax = left, rcx = right."""
        if isinstance(right, Number):
            self._operand(left)
            self._assembler.emit(mov("rcx", right.value))
            return
        self._operand(right)
        if self._frame.depth - self._depth >= 8 * _DEEPEST:
            raise ProbeError(self._program.name, NOT_SUPPORTED, "its condition is nested too deeply")
        self._frame.push("rax")
        self._operand(left)
        self._frame.pop("rcx")

    def _fault(self) -> Label:
        """Where to go from here when memory is not there: intermediate results are dropped on the way."""
        surplus = self._frame.depth - self._depth
        if surplus == 0:
            return self._failed
        label = self._emission.new_label()

        def drop() -> None:
            self._assembler.label(label)
            self._assembler.emit(lea("rsp", at("rsp", surplus)))
            self._assembler.jump(self._failed)

        self._emission.later(drop)
        return label

    def _check_number(self, kind: FetchType) -> None:
        if kind.kind == "string" or kind.count is not None:
            raise ProbeError(self._program.name, NOT_SUPPORTED, "strings and arrays in conditions")
