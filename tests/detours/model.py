"""What fetch arguments and conditions mean, in Python: the model that the machine code is compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sidestep.events.record import REGISTER_ARGUMENTS, EventProgram
from sidestep.spec import (
    Argument,
    Arithmetic,
    Comparison,
    Condition,
    Dereference,
    Fetch,
    FetchOperand,
    FetchType,
    Immediate,
    Logical,
    Memory,
    Name,
    Not,
    Number,
    Operand,
    Register,
    ReturnValue,
    StackPointer,
    StackSlot,
    SymbolMemory,
)

WORD = (1 << 64) - 1


class Unreadable(Exception):
    """Memory is not there."""


@dataclass(frozen=True)
class State:
    """The target at a probepoint. `read(address, size)` returns what can be read, from the first byte on."""

    address: int
    registers: dict[str, int]  # 64-bit names, and "flags"
    read: Callable[[int, int], bytes]
    variables: Callable[[SymbolMemory], int]

    def memory(self, address: int, size: int) -> bytes:
        found = self.read(address & WORD, size)
        if len(found) < size:
            raise Unreadable
        return found

    def word(self, fetch: Fetch, size: int = 8) -> int:
        """The value before it is cut to its type."""
        match fetch:
            case Register(name="ip"):
                return self.address
            case Register(name="flags"):
                return self.registers["flags"]
            case Register(name=name):
                return self.registers[name if name[0] == "r" else f"r{name}"]
            case StackPointer():
                return self.registers["rsp"]
            case ReturnValue():
                return self.registers["rax"]
            case Immediate(value=value):
                return value & WORD
            case Argument(number=number) if number <= 6:
                return self.registers[REGISTER_ARGUMENTS[number - 1]]
            case StackSlot() | Argument():
                size = 8
            case _:
                pass
        return int.from_bytes(self.memory(self.location(fetch), size), "little")

    def location(self, fetch: Fetch) -> int:
        """The address that the last step reads."""
        match fetch:
            case Argument(number=number):
                return self.registers["rsp"] + 8 * (number - 6)
            case StackSlot(number=number):
                return self.registers["rsp"] + 8 * number
            case Memory(address=address):
                return address
            case SymbolMemory():
                return self.variables(fetch)
            case Dereference(offset=offset, inner=inner):
                return self.word(inner) + offset & WORD
            case _:
                raise AssertionError(fetch)

    def number(self, fetch: Fetch, kind: FetchType) -> int:
        return cut(self.word(fetch, kind.element_size), kind)


def cut(word: int, kind: FetchType) -> int:
    """A word by its type: a Python integer with its sign."""
    if kind.bitfield is not None:
        word >>= kind.bitfield.offset
    return signed(word, kind.value_bits) if kind.signed else word & (1 << kind.value_bits) - 1


def signed(value: int, bits: int = 64) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> bits - 1 else value


def holds(program: EventProgram, state: State) -> bool:
    """Whether the condition holds; memory that is not there makes it false as a whole."""
    assert program.condition is not None
    try:
        return _truth(program.condition, program, state)
    except Unreadable:
        return False


def _truth(condition: Condition, program: EventProgram, state: State) -> bool:
    match condition:
        case Not(term=term):
            return not _truth(term, program, state)
        case Logical(operator="&&", terms=terms):
            return all(_truth(term, program, state) for term in terms)
        case Logical(terms=terms):
            return any(_truth(term, program, state) for term in terms)
        case Comparison():
            right = _operand(condition.right, program, state)
            left = _operand(condition.left, program, state)
            if condition.signed:
                left, right = signed(left), signed(right)
            outcomes = {
                "==": left == right,
                "!=": left != right,
                "<": left < right,
                "<=": left <= right,
                ">": left > right,
                ">=": left >= right,
            }
            return outcomes[condition.operator]
        case _:
            return _operand(condition, program, state) != 0


def _operand(operand: Operand, program: EventProgram, state: State) -> int:
    """The 64 bits of an operand."""
    match operand:
        case Number(value=value):
            return value & WORD
        case Name(index=index):
            argument = program.arguments[index]
            return state.number(argument.fetch, argument.type) & WORD
        case FetchOperand(fetch=fetch, type=kind):
            return state.number(fetch, kind) & WORD
        case Arithmetic(operator=operator):
            right = _operand(operand.right, program, state)
            left = _operand(operand.left, program, state)
            shifted = signed(left) if operand.signed else left
            results = {
                "+": left + right,
                "-": left - right,
                "&": left & right,
                "|": left | right,
                "^": left ^ right,
                "<<": left << (right & 63),
                ">>": shifted >> (right & 63),
            }
            return results[operator] & WORD
