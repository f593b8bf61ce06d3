"""What a condition means: comparisons of 64-bit values, and how they are joined."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from sidestep.spec.nodes import X64, Fetch, FetchType, Node, with_type

ArithmeticOperator: TypeAlias = Literal["|", "^", "&", "<<", ">>", "+", "-"]
ComparisonOperator: TypeAlias = Literal["==", "!=", "<", "<=", ">", ">="]
LogicalOperator: TypeAlias = Literal["&&", "||"]


@dataclass(frozen=True, slots=True)
class Number(Node):
    """A constant, -2**63 .. 2**64 - 1."""

    value: int

    @property
    def signed(self) -> bool:
        return self.value < 0

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, slots=True)
class Name(Node):
    """The value of the probe's fetch argument `arguments[index]`, extended to 64 bits by its type."""

    index: int
    name: str
    type: FetchType

    @property
    def signed(self) -> bool:
        return self.type.signed

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class FetchOperand(Node):
    """A fetch argument written directly into a condition, extended to 64 bits by its type."""

    fetch: Fetch
    type: FetchType = X64

    @property
    def signed(self) -> bool:
        return self.type.signed

    def __str__(self) -> str:
        return with_type(self.fetch, self.type)


@dataclass(frozen=True, slots=True)
class Arithmetic(Node):
    """`left OPERATOR right` in 64 bits, wrapping around; the count of a shift is taken modulo 64."""

    operator: ArithmeticOperator
    left: Operand
    right: Operand

    @property
    def signed(self) -> bool:
        """A signed part makes the result signed; of a shift only the left side (`>>` then keeps the sign)."""
        shift = self.operator in ("<<", ">>")
        return self.left.signed or (self.right.signed and not shift)

    def __str__(self) -> str:
        return f"{_operand(self.left)} {self.operator} {_operand(self.right)}"


Operand: TypeAlias = Number | Name | FetchOperand | Arithmetic


@dataclass(frozen=True, slots=True)
class Comparison(Node):
    """`left OPERATOR right`, of 64-bit values."""

    operator: ComparisonOperator
    left: Operand
    right: Operand

    @property
    def signed(self) -> bool:
        """Whether the sides are compared as signed numbers: as soon as one of them is signed."""
        return self.left.signed or self.right.signed

    def __str__(self) -> str:
        return f"{_operand(self.left)} {self.operator} {_operand(self.right)}"


@dataclass(frozen=True, slots=True)
class Not(Node):
    """`!term`."""

    term: Condition

    def __str__(self) -> str:
        compound = isinstance(self.term, Arithmetic | Comparison | Logical)
        return f"!({self.term})" if compound else f"!{self.term}"


@dataclass(frozen=True, slots=True)
class Logical(Node):
    """Two or more terms, joined by one operator; they are decided from the left, no more than needed."""

    operator: LogicalOperator
    terms: tuple[Condition, ...]

    def __str__(self) -> str:
        texts = (f"({term})" if isinstance(term, Logical) else str(term) for term in self.terms)
        return f" {self.operator} ".join(texts)


# An operand as a condition holds when it is not zero.
Condition: TypeAlias = Comparison | Logical | Not | Operand


def _operand(operand: Operand) -> str:
    return f"({operand})" if isinstance(operand, Arithmetic) else str(operand)


def operands(condition: Condition) -> Iterator[Number | Name | FetchOperand]:
    """The values that a condition looks at, from left to right."""
    match condition:
        case Comparison() | Arithmetic():
            yield from operands(condition.left)
            yield from operands(condition.right)
        case Logical():
            for term in condition.terms:
                yield from operands(term)
        case Not():
            yield from operands(condition.term)
        case _:
            yield condition
