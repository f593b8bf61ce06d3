"""Integers of fixed width: the types of native handlers, and in plain Python the values with their meaning.

Results wrap around, as the width and the sign say. Two operands have the same type, or one of them is a plain
`int` that fits the other's type: nothing is widened or changed in sign but by an explicit conversion, which
is a call of the type. Division and modulo round down, as Python's do. A shift by more than the width gives
what Python's would: 0, or -1 for a negative number that is shifted right.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Self


class Integer(int):
    """The base of u8 .. u64 and i8 .. i64. A call converts: the value is cut to the width."""

    bits: ClassVar[int]
    signed: ClassVar[bool]

    def __new__(cls, value: int = 0) -> Self:
        return super().__new__(cls, wrap(cls, int(value)))

    @classmethod
    def least(cls) -> int:
        return -(1 << cls.bits - 1) if cls.signed else 0

    @classmethod
    def greatest(cls) -> int:
        return (1 << cls.bits - cls.signed) - 1

    @classmethod
    def holds(cls, value: int) -> bool:
        """Whether a number has this type without being cut."""
        return cls.least() <= value <= cls.greatest()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({int(self)})"

    def __str__(self) -> str:
        return int.__repr__(self)

    def __format__(self, spec: str) -> str:
        return format(int(self), spec)

    def __neg__(self) -> Self:
        return type(self)(-int(self))

    def __pos__(self) -> Self:
        return self

    def __abs__(self) -> Self:
        return type(self)(abs(int(self)))

    def __invert__(self) -> Self:
        return type(self)(~int(self))

    def _refused(self, other: object) -> Self:
        raise TypeError(f"{type(self).__name__} has no such operator: there is // and %")

    __truediv__ = __rtruediv__ = __pow__ = __rpow__ = __divmod__ = __rdivmod__ = _refused  # type: ignore[assignment]
    __hash__ = int.__hash__

    if TYPE_CHECKING:  # what the operators below are to a type checker

        def __add__(self, other: int) -> Self: ...
        def __radd__(self, other: int) -> Self: ...
        def __sub__(self, other: int) -> Self: ...
        def __rsub__(self, other: int) -> Self: ...
        def __mul__(self, other: int) -> Self: ...
        def __rmul__(self, other: int) -> Self: ...
        def __floordiv__(self, other: int) -> Self: ...
        def __rfloordiv__(self, other: int) -> Self: ...
        def __mod__(self, other: int) -> Self: ...
        def __rmod__(self, other: int) -> Self: ...
        def __and__(self, other: int) -> Self: ...
        def __rand__(self, other: int) -> Self: ...
        def __or__(self, other: int) -> Self: ...
        def __ror__(self, other: int) -> Self: ...
        def __xor__(self, other: int) -> Self: ...
        def __rxor__(self, other: int) -> Self: ...
        def __lshift__(self, other: int) -> Self: ...
        def __rlshift__(self, other: int) -> Self: ...
        def __rshift__(self, other: int) -> Self: ...
        def __rrshift__(self, other: int) -> Self: ...


def wrap(kind: type[Integer], value: int) -> int:
    """The number that the low bits of `value` are in a type."""
    value = int(value) & (1 << kind.bits) - 1
    return value - (1 << kind.bits) if kind.signed and value >> kind.bits - 1 else value


def _operand(kind: type[Integer], other: object) -> int:
    """The other operand's number; TypeError unless it is of that type, or a plain int that fits."""
    if type(other) is kind:
        return int(other)
    if type(other) is int:
        if kind.holds(other):
            return other
        raise TypeError(f"{other} does not fit {kind.__name__}")
    raise TypeError(f"{kind.__name__} and {type(other).__name__}: convert one of them")


def _binary(function: Callable[[int, int], int]) -> tuple[Any, Any]:
    """The method of an operator, and the one for a plain int on the left."""

    def forward(self: Integer, other: object) -> Integer:
        kind = type(self)
        return kind(function(int(self), _operand(kind, other)))

    def reflected(self: Integer, other: object) -> Integer:
        kind = type(self)
        return kind(function(_operand(kind, other), int(self)))

    return forward, reflected


def _comparison(function: Callable[[int, int], bool]) -> Any:
    def compare(self: Integer, other: object) -> Any:
        if not isinstance(other, int):
            return NotImplemented
        return function(int(self), _operand(type(self), other))

    return compare


EXACT: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.floordiv,
    "mod": operator.mod,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "shl": operator.lshift,
    "shr": operator.rshift,
}
"""What the operations of the representation do, without a width."""


def shift_left(left: int, count: int) -> int:
    """As `<<`, without making numbers that are cut anyway. ValueError for a negative count."""
    return 0 if count >= 64 else left << count


_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "lshift": shift_left,
    "rshift": operator.rshift,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
}
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
for _name, _function in _OPERATORS.items():
    _forward, _reflected = _binary(_function)
    setattr(Integer, f"__{_name}__", _forward)
    setattr(Integer, f"__r{_name}__", _reflected)
for _name, _compare in _COMPARISONS.items():
    setattr(Integer, f"__{_name}__", _comparison(_compare))


class u8(Integer):
    bits, signed = 8, False


class u16(Integer):
    bits, signed = 16, False


class u32(Integer):
    bits, signed = 32, False


class u64(Integer):
    bits, signed = 64, False


class i8(Integer):
    bits, signed = 8, True


class i16(Integer):
    bits, signed = 16, True


class i32(Integer):
    bits, signed = 32, True


class i64(Integer):
    bits, signed = 64, True


INTEGERS: tuple[type[Integer], ...] = (u8, u16, u32, u64, i8, i16, i32, i64)
