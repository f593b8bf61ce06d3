"""Comparisons, `and` and `or`, and the choice between two values."""

from __future__ import annotations

import ast

from sidestep.compiler.integers import i64
from sidestep.compiler.ir import Constant
from sidestep.compiler.operators import Operators
from sidestep.compiler.scope import Characters, Literal, Loose, Operand, TextAt
from sidestep.compiler.text import compared

COMPARE: dict[type[ast.cmpop], str] = {
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
}


class Conditions(Operators):
    """Expressions with conditions."""

    def _Compare(self, node: ast.Compare) -> Operand:
        for operator in node.ops:
            if isinstance(operator, ast.Is | ast.IsNot):
                raise self.error(node, "`is` compares objects", "use == or !=")
            if len(node.ops) > 1 and isinstance(operator, ast.In | ast.NotIn):
                raise self.error(node, "`in` within a chain of comparisons", "use `and`")
        if len(node.ops) == 1:
            return self._compare(node, node.ops[0], node.left, node.comparators[0])
        # a < b < c evaluates b once, and c only if a < b.
        result = self.hidden(bool)
        done = self.builder.new_block()
        left: Operand = self.value(node.left)
        left_node = node.left
        for number, (operator, right_node) in enumerate(zip(node.ops, node.comparators, strict=True)):
            right = self.value(right_node)
            holds = self._compare_values(node, operator, left_node, left, right_node, right)
            self.builder.do("set_local", self.bare(holds), about=result)
            if number + 1 < len(node.ops):
                further = self.builder.new_block()
                self.builder.branch(self.bare(holds), further, done)
                self.builder.at(further)
            left, left_node = right, right_node
        self.builder.jump(done)
        self.builder.at(done)
        return self.builder.make(bool, "get_local", about=result)

    def _compare(self, node: ast.Compare, operator: ast.cmpop, left: ast.expr, right: ast.expr) -> Operand:
        if isinstance(operator, ast.In | ast.NotIn):
            return self._contained(node, left, right, isinstance(operator, ast.NotIn))
        a, b = self.operand(left), self.operand(right)
        if isinstance(a, Characters):
            left, right, a, b = right, left, b, a
        if isinstance(a, TextAt):
            return self._compare_text(node, operator, a, b)
        return self._compare_values(node, operator, left, self.value(left, a), right, self.value(right, b))

    def _compare_text(self, node: ast.Compare, operator: ast.cmpop, text: TextAt, other: Operand) -> Operand:
        if not isinstance(operator, ast.Eq | ast.NotEq) or not isinstance(other, Characters):
            raise self.error(node, "text can only be compared with a constant, by == or !=")
        try:
            wanted = compared(other.value, text.limit)
        except ValueError as error:
            raise self.error(node, str(error)) from None
        arguments = () if text.address is None else (text.address,)
        same = self.builder.make(bool, "same_text", *arguments, about=wanted)
        if isinstance(operator, ast.Eq):
            return same
        return self.builder.make(bool, "xor", same, Constant(1, bool))

    def _contained(self, node: ast.Compare, left: ast.expr, right: ast.expr, negated: bool) -> Operand:
        raise NotImplementedError

    def _compare_values(
        self, node: ast.Compare, operator: ast.cmpop, left: ast.expr, a: Operand, right: ast.expr, b: Operand
    ) -> Operand:
        name = COMPARE[type(operator)]
        x, y, kind = self._unified(node, left, a, right, b)
        if isinstance(x, Literal) and isinstance(y, Literal):
            holds = {"eq": x == y, "ne": x != y, "lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y}[name]
            return Constant(int(holds), bool)
        if kind is bool and name not in ("eq", "ne"):
            raise self.error(node, "truth values have no order", "use == or !=")
        return self.builder.make(bool, name, self.bare(x), self.bare(y))

    def _BoolOp(self, node: ast.BoolOp) -> Operand:
        """`a and b` is `a` if that is false, else `b`: all operands have one type."""
        first = self.value(node.values[0])
        operands: list[Operand] = [first]
        done = self.builder.new_block()
        kind = i64 if isinstance(first, Literal) else self.bare(first).type
        if isinstance(first, Loose | Literal):
            hint = "compare them: `a != 0 and b != 0`"
            raise self.error(node.values[0], "a plain integer among `and` and `or`", hint)
        result = self.hidden(kind)
        for number, each in enumerate(node.values):
            operand = operands[0] if number == 0 else self.value(each)
            value = self.typed(each, kind, operand)
            self.builder.do("set_local", value, about=result)
            if number + 1 < len(node.values):
                further = self.builder.new_block()
                holds = self.truth(each, value)
                then, otherwise = (further, done) if isinstance(node.op, ast.And) else (done, further)
                self.builder.branch(holds, then, otherwise)
                self.builder.at(further)
        self.builder.jump(done)
        self.builder.at(done)
        self.join(node, kind)
        return self.builder.make(kind, "get_local", about=result)

    def _IfExp(self, node: ast.IfExp) -> Operand:
        then, otherwise, done = (self.builder.new_block() for _ in range(3))
        self.builder.branch(self.truth(node.test), then, otherwise)
        self.builder.at(then)
        a = self.value(node.body)
        then = self.builder.block
        self.builder.at(otherwise)
        b = self.value(node.orelse)
        otherwise = self.builder.block
        x, y, kind = self._unified(node, node.body, a, node.orelse, b)
        values = [
            self.typed(each, kind, v) if isinstance(v, Literal) else self.bare(v)
            for each, v in ((node.body, x), (node.orelse, y))
        ]
        result = self.hidden(kind)
        for block, value in zip((then, otherwise), values, strict=True):
            self.builder.at(block)
            self.builder.do("set_local", value, about=result)
            self.builder.jump(done)
        self.builder.at(done)
        self.join(node, kind)
        found = self.builder.make(kind, "get_local", about=result)
        names = frozenset[str]().union(*(each.names for each in (x, y) if isinstance(each, Loose)))
        return Loose(found, names) if names else found
