"""What expressions of the subset stand for: numbers, names, attributes; and values with a type."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any, TypeAlias

from sidestep.compiler.diagnostics import HandlerError, Place, Source, place_of
from sidestep.compiler.integers import Integer, i64, u8, u16, u32, u64, wrap
from sidestep.compiler.ir import Builder, Constant, Temporary, Type, Value, Where
from sidestep.compiler.registers import REGISTERS, register_of
from sidestep.compiler.scope import (
    Backtrace,
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
from sidestep.compiler.unsupported import EXPRESSIONS

UNSIGNED = {kind.bits: kind for kind in (u8, u16, u32, u64)}
Joins: TypeAlias = dict[tuple[Callable[..., Any], Place], Type]
"""Types of expressions that have several origins, by function and place."""


class Operands:
    """Makes the operations of expressions at the builder's current block."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.scope: Scope
        self.source: Source
        self.joins: Joins = {}
        self.reads: dict[int, HandlerError] = {}  # by temporary: what to say if the local has no value
        self.owner: Any = None  # the map whose method is compiled
        self._hidden = 0

    def error(self, node: ast.AST, what: str, hint: str = "") -> HandlerError:
        return self.source.error(node, what, hint)

    def stand_at(self, node: ast.expr | ast.stmt) -> None:
        """What is made now belongs to a line of the source; of a map's code, to the line that uses the
        map."""
        if self.owner is None:
            self.builder.where = Where(self.source.file, node.lineno)

    # Operands to values

    def operand(self, node: ast.expr) -> Operand:
        """What an expression stands for."""
        self.stand_at(node)
        method = getattr(self, f"_{type(node).__name__}", None)
        if method is None:
            raise self.error(node, *EXPRESSIONS.get(type(node), (f"`{ast.unparse(node)}`", "")))
        result: Operand = method(node)
        return result

    def value(self, node: ast.expr, found: Operand | None = None) -> Value | Literal | Loose:
        """An expression's number or truth value."""
        if found is None:
            found = self.operand(node)
        if isinstance(found, Pointer | TextAt | Backtrace | Named | Characters | Captured | Special):
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
        if isinstance(found, Pointer | TextAt | Backtrace | Named | Characters | Captured | Special):
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

    def convert(self, value: Value, kind: Type) -> Value:
        """A value in another type: cut, or extended by its own sign."""
        if value.type is kind:
            return value
        if isinstance(value, Constant) and issubclass(kind, Integer):
            return Constant(wrap(kind, value.value), kind)
        return self.builder.make(kind, "convert", value)

    def unsigned(self, value: Value) -> Value:
        """The same bits without a sign."""
        assert issubclass(value.type, Integer)
        return self.convert(value, UNSIGNED[value.type.bits])

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
                self.join(node, u64)  # a plain number in Python
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
