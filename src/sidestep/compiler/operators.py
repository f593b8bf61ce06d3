"""Arithmetic of the subset, to operations."""

from __future__ import annotations

import ast

from sidestep.compiler.integers import EXACT, Integer, wrap
from sidestep.compiler.ir import Constant, Type, Value
from sidestep.compiler.operands import Operands
from sidestep.compiler.scope import Literal, Loose, Operand

BINARY: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.FloorDiv: "div",
    ast.Mod: "mod",
    ast.BitAnd: "and",
    ast.BitOr: "or",
    ast.BitXor: "xor",
    ast.LShift: "shl",
    ast.RShift: "shr",
}
LARGEST_FOLDED_SHIFT = 128


class Operators(Operands):
    """Expressions with operators between numbers."""

    def _BinOp(self, node: ast.BinOp) -> Operand:
        name = BINARY.get(type(node.op))
        if name is None:
            what = {ast.Div: "`/` gives a fraction", ast.Pow: "there is no `**`"}
            hint = {ast.Div: "use `//`", ast.Pow: "use shifts or multiplication"}
            kind = type(node.op)
            raise self.error(node, what.get(kind, "there is no `@`"), hint.get(kind, ""))
        return self.arithmetic(node, name, node.left, node.right)

    def arithmetic(self, node: ast.AST, name: str, left: ast.expr, right: ast.expr) -> Operand:
        """An operator between two expressions."""
        a, b, kind = self.same(node, left, right)
        if isinstance(a, Literal) and isinstance(b, Literal):
            return self._fold(node, name, a.value, b.value)
        return self.operate(node, name, a, b, kind)

    def operate(self, node: ast.AST, name: str, a: Operand, b: Operand, kind: Type) -> Operand:
        """An operator between two values of one type."""
        if kind is bool:
            if name not in ("and", "or", "xor"):
                raise self.error(node, "truth values cannot be computed with", "convert: u64(...)")
            return self.builder.make(bool, name, self.bare(a), self.bare(b))
        assert issubclass(kind, Integer)
        x, y = self.bare(a), self.bare(b)
        if name in ("div", "mod"):
            self._refuse_constant(node, y, 0, "division by zero")
            self._fault_unless_constant(y, "eq", "division by zero")
        if name in ("shl", "shr") and kind.signed:
            if isinstance(y, Constant) and y.value < 0:
                raise self.error(node, "a shift by a negative number")
            self._fault_unless_constant(y, "lt", "shift by a negative number")
        result = self.builder.make(kind, name, x, y)
        names = frozenset[str]().union(*(operand.names for operand in (a, b) if isinstance(operand, Loose)))
        return Loose(result, names) if names else result

    def _refuse_constant(self, node: ast.AST, value: Value, number: int, what: str) -> None:
        if isinstance(value, Constant) and value.value == number:
            raise self.error(node, what)

    def _fault_unless_constant(self, value: Value, comparison: str, why: str) -> None:
        if not isinstance(value, Constant):
            bad = self.builder.make(bool, comparison, value, Constant(0, value.type))
            self.builder.fault_if(bad, why)

    def _fold(self, node: ast.AST, name: str, a: int, b: int) -> Literal:
        if name in ("shl", "shr") and not 0 <= b <= LARGEST_FOLDED_SHIFT:
            raise self.error(node, f"a shift by {b}")
        try:
            return Literal(EXACT[name](a, b))
        except ZeroDivisionError:
            raise self.error(node, "division by zero") from None

    def _UnaryOp(self, node: ast.UnaryOp) -> Operand:
        if isinstance(node.op, ast.Not):
            return self.negated(self.truth(node.operand))
        found = self.value(node.operand)
        if isinstance(found, Literal):
            return Literal(
                {ast.USub: -found.value, ast.UAdd: found.value, ast.Invert: ~found.value}[type(node.op)]
            )
        value = self.bare(found)
        if not issubclass(value.type, Integer):
            raise self.error(node, "truth values have no sign and no bits", "use `not`")
        if isinstance(node.op, ast.UAdd):
            return found
        if isinstance(node.op, ast.USub):
            result = self.builder.make(value.type, "sub", Constant(0, value.type), value)
        else:
            result = self.builder.make(value.type, "xor", value, Constant(wrap(value.type, -1), value.type))
        return Loose(result, found.names) if isinstance(found, Loose) else result

    def negated(self, value: Value) -> Value:
        """The other truth value."""
        if isinstance(value, Constant):
            return Constant(1 - value.value, bool)
        return self.builder.make(bool, "xor", value, Constant(1, bool))

    def truth(self, node: ast.expr, found: Operand | None = None) -> Value:
        """What `if` makes of an expression."""
        if found is None:
            found = self.value(node)
        if isinstance(found, Literal):
            return Constant(int(found.value != 0), bool)
        value = self.bare(found)
        if value.type is bool:
            return value
        return self.builder.make(bool, "ne", value, Constant(0, value.type))
