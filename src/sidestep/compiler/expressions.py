"""Expressions of the subset, to operations."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any, TypeAlias

from sidestep.compiler.diagnostics import HandlerError, Place, Source, place_of
from sidestep.compiler.integers import Integer, i64, u64, wrap
from sidestep.compiler.ir import Builder, Constant, Temporary, Type, Value
from sidestep.compiler.registers import REGISTERS, register_of
from sidestep.compiler.scope import (
    Captured,
    Characters,
    Learned,
    Literal,
    Loose,
    Named,
    Operand,
    Pointer,
    Scope,
    Special,
    TextAt,
    is_module,
)
from sidestep.compiler.text import compared
from sidestep.compiler.unsupported import EXPRESSIONS

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
COMPARE: dict[type[ast.cmpop], str] = {
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
}
FOLDED: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "shl": lambda a, b: a << b,
    "shr": lambda a, b: a >> b,
}
LARGEST_FOLDED_SHIFT = 128
Joins: TypeAlias = dict[tuple[Callable[..., Any], Place], Type]
"""Types of expressions that have several origins, by function and place."""


class Expressions:
    """Makes the operations of expressions at the builder's current block."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.scope: Scope
        self.source: Source
        self.joins: Joins = {}
        self.reads: dict[int, HandlerError] = {}  # by temporary: what to say if the local has no value
        self._hidden = 0

    def error(self, node: ast.AST, what: str, hint: str = "") -> HandlerError:
        return self.source.error(node, what, hint)

    # Operands to values

    def operand(self, node: ast.expr) -> Operand:
        """What an expression stands for."""
        self.builder.line = node.lineno
        method = getattr(self, f"_{type(node).__name__}", None)
        if method is None:
            raise self.error(node, *EXPRESSIONS.get(type(node), (f"`{ast.unparse(node)}`", "")))
        result: Operand = method(node)
        return result

    def value(self, node: ast.expr, found: Operand | None = None) -> Value | Literal | Loose:
        """An expression's number or truth value."""
        if found is None:
            found = self.operand(node)
        if isinstance(found, Pointer | TextAt | Named | Characters | Captured | Special):
            raise self.no_number(node, found)
        return found

    def no_number(self, node: ast.expr, found: Operand) -> HandlerError:
        name = ast.unparse(node)
        if isinstance(found, Pointer):
            return self.error(node, f"`{name}` is a pointer, not a number", f"read what is there: {name}[0]")
        return self.error(node, f"`{name}` is not a number")

    def typed(self, node: ast.expr, kind: Type, found: Operand | None = None) -> Value:
        """An expression as a value of that very type."""
        if found is None:
            found = self.value(node)
        if isinstance(found, Literal):
            if kind is bool:
                raise self.error(node, f"{found.value} is not a truth value", "compare it: `!= 0`")
            assert issubclass(kind, Integer)
            if not kind.holds(found.value):
                hint = f"{kind.__name__} holds {kind.least()} to {kind.greatest()}"
                raise self.error(node, f"{found.value} does not fit {kind.__name__}", hint)
            return Constant(found.value, kind)
        if isinstance(found, Loose):
            if kind is not i64:
                raise Learned(found.names, kind)
            return found.value
        if isinstance(found, Pointer | TextAt | Named | Characters | Captured | Special):
            raise self.no_number(node, found)
        if found.type is not kind:
            raise self.error(
                node,
                f"`{ast.unparse(node)}` has type {found.type.__name__}, {kind.__name__} is needed",
                f"convert it: {kind.__name__}({ast.unparse(node)})",
            )
        return found

    def settled(self, node: ast.expr, found: Operand | None = None) -> Value:
        """A value with its own type; for plain integers i64, or u64 where only that is large enough."""
        if found is None:
            found = self.value(node)
        if isinstance(found, Literal):
            return self.typed(node, u64 if found.value > i64.greatest() else i64, found)
        if isinstance(found, Loose):
            return found.value
        assert isinstance(found, Constant | Temporary)
        return found

    def same(self, node: ast.AST, left: ast.expr, right: ast.expr) -> tuple[Operand, Operand, Type]:
        """Two operands, brought to one type. Literals stay as they are."""
        a, b = self.value(left), self.value(right)
        return (*self._unified(node, left, a, right, b),)

    def _unified(
        self, node: ast.AST, left: ast.expr, a: Operand, right: ast.expr, b: Operand
    ) -> tuple[Operand, Operand, Type]:
        for operand in (a, b):
            if isinstance(operand, Constant | Temporary):
                kind = operand.type
                if (
                    isinstance(a, Constant | Temporary)
                    and isinstance(b, Constant | Temporary)
                    and a.type is not b.type
                ):
                    hint = f"convert one of them, as in {a.type.__name__}({ast.unparse(right)})"
                    raise self.error(node, f"{a.type.__name__} and {b.type.__name__} do not mix", hint)
                return self.typed(left, kind, a), self.typed(right, kind, b), kind
        if isinstance(a, Literal) and isinstance(b, Literal):
            return a, b, i64
        names = frozenset[str]().union(*(x.names for x in (a, b) if isinstance(x, Loose)))
        if any(isinstance(x, Literal) and i64.greatest() < x.value <= u64.greatest() for x in (a, b)):
            raise Learned(names, u64)
        loose = [
            Loose(self.typed(each, i64, operand), names) if isinstance(operand, Literal) else operand
            for each, operand in ((left, a), (right, b))
        ]
        return loose[0], loose[1], i64

    @staticmethod
    def bare(operand: Operand) -> Value:
        """The value of an operand that has one."""
        if isinstance(operand, Loose):
            return operand.value
        assert isinstance(operand, Constant | Temporary)
        return operand

    def hidden(self, kind: Type) -> str:
        """A new local that no program can name."""
        self._hidden += 1
        name = f".{self._hidden}"
        self.builder.function.locals[name] = kind
        return name

    def join(self, node: ast.expr, kind: Type) -> None:
        """Note the type of an expression that has several origins: of one that is a plain number Python does
        not know it."""
        self.joins[self.source.function, place_of(node)] = kind

    def note_read(self, node: ast.Name, value: Temporary) -> None:
        """A local is read, which may turn out to have no value on some way."""
        hint = "assign it on every way that leads here"
        self.reads[value.number] = self.error(node, f"`{node.id}` may have no value here", hint)

    # Numbers and names

    def _Constant(self, node: ast.Constant) -> Operand:
        if isinstance(node.value, bool):
            return Constant(int(node.value), bool)
        if isinstance(node.value, int):
            return Literal(node.value)
        if isinstance(node.value, str | bytes):
            return Characters(node.value)
        what = "a floating-point number" if isinstance(node.value, float) else f"{node.value!r}"
        hint = "handlers compute with integers" if isinstance(node.value, float | complex) else ""
        raise self.error(node, f"{what} cannot be used here", hint)

    def _Name(self, node: ast.Name) -> Operand:
        name = node.id
        if name in self.scope.special:
            return self._special(node, self.scope.special[name])
        if name in self.scope.locals:
            return self._local(node)
        try:
            thing = self.scope.captured(name)
        except KeyError:
            raise self.error(node, f"`{name}` is not defined", "") from None
        except ValueError:
            raise self.error(node, f"`{name}` has no value yet", "define it before the handler") from None
        return self.captured(node, thing)

    def _special(self, node: ast.Name, found: Operand) -> Operand:
        if not isinstance(found, Named):
            return found
        address = self.builder.make(u64, "get_local", about=found.local)
        self.note_read(node, address)
        return TextAt(address, found.limit) if found.kind is None else Pointer(address, found.kind)

    def _local(self, node: ast.Name) -> Operand:
        raise NotImplementedError

    def captured(self, node: ast.expr, thing: Any) -> Operand:
        """What an object from outside stands for. Mutable ones would have two values: refused."""
        if isinstance(thing, bool):
            return Constant(int(thing), bool)
        if isinstance(thing, Integer):
            return Constant(int(thing), type(thing))
        if isinstance(thing, int):
            return Literal(thing)
        if is_module(thing) or callable(thing) or hasattr(thing, "native_methods"):
            return Captured(thing)
        raise self.error(
            node,
            f"`{ast.unparse(node)}` is a Python object of type {type(thing).__name__}: the target has none",
            "numbers, maps, event classes and other native functions can be used from outside",
        )

    def _Attribute(self, node: ast.Attribute) -> Operand:
        owner = self.operand(node.value)
        if isinstance(owner, Special):
            return self._special_attribute(node, owner)
        if isinstance(owner, Captured) and is_module(owner.thing):
            try:
                return self.captured(node, getattr(owner.thing, node.attr))
            except AttributeError:
                raise self.error(node, f"`{ast.unparse(node)}` does not exist") from None
        if isinstance(owner, Captured):
            return self._member(node, owner.thing)
        raise self.error(node, f"numbers have no attribute `{node.attr}`")

    def _special_attribute(self, node: ast.Attribute, owner: Special) -> Operand:
        if owner.what == "p":
            if node.attr == "addr":
                return self.builder.make(u64, "probe_address")
            raise self.error(node, f"`p.{node.attr}` is not known in the target", "there is p.addr")
        if node.attr == "return_address":
            return self.builder.make(u64, "stack", about=0)
        register = register_of(node.attr)
        if register is None:
            hint = "there are arg(n), stack(n), return_address, return_value, " + " ".join(REGISTERS)
            raise self.error(node, f"there is no register `{node.attr}`", hint)
        return self.builder.make(u64, "register", about=register)

    def _member(self, node: ast.Attribute, thing: Any) -> Operand:
        raise NotImplementedError

    # Operators

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
            return Literal(FOLDED[name](a, b))
        except ZeroDivisionError:
            raise self.error(node, "division by zero") from None

    def _UnaryOp(self, node: ast.UnaryOp) -> Operand:
        if isinstance(node.op, ast.Not):
            return self.builder.make(bool, "xor", self.truth(node.operand), Constant(1, bool))
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

    # Truth

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
