"""What has items or attributes: memory of the target, and maps."""

from __future__ import annotations

import ast
from typing import Any, NamedTuple

from sidestep.compiler.inlining import Inlining
from sidestep.compiler.integers import INTEGERS, Integer, u64
from sidestep.compiler.ir import Constant, Value
from sidestep.compiler.scope import Captured, Literal, Operand, Pointer, TextAt
from sidestep.compiler.text import LONGEST


class Method(NamedTuple):
    """A method of a map."""

    owner: Any
    name: str


class Items(Inlining):
    """Expressions with pointers, text and maps."""

    # Text and pointers

    def _string(self, node: ast.Call) -> Operand:
        if len(node.args) != 2 or node.keywords:
            raise self.error(node, "string takes a pointer and a limit", "string(regs.arg(0), 64)")
        limit = self.value(node.args[1])
        if not isinstance(limit, Literal) or not 0 < limit.value <= LONGEST:
            raise self.error(node.args[1], f"the limit must be a known number from 1 to {LONGEST}")
        pointer = self.operand(node.args[0])
        address = pointer.address if isinstance(pointer, Pointer) else self.typed(node.args[0], u64, pointer)
        return TextAt(address, limit.value)

    def _pointer(self, node: ast.Call) -> Operand:
        if len(node.args) != 2 or node.keywords:
            raise self.error(node, "pointer takes a type and an address", "pointer(u32, regs.arg(0))")
        kind = self.operand(node.args[0])
        if not isinstance(kind, Captured) or kind.thing not in INTEGERS:
            raise self.error(node.args[0], f"`{ast.unparse(node.args[0])}` is not an integer type")
        return Pointer(self.typed(node.args[1], u64), kind.thing)

    def read(self, place: Pointer, index: Value, kind: type[Integer]) -> Value:
        """The element of a pointer."""
        size = Constant(place.kind.bits // 8, u64)
        offset = self.builder.make(u64, "mul", self.convert(index, u64), size)
        address = self.builder.make(u64, "add", place.address, offset)
        return self.builder.make(kind, "read", address, about=kind)

    # Items

    def _Subscript(self, node: ast.Subscript) -> Operand:
        owner = self.operand(node.value)
        if isinstance(owner, Pointer):
            return self.read(owner, self.settled(node.slice), owner.kind)
        table = self._table(node, owner)
        found = self._inline_values(node, table, "native_get", [self._key(node, table)])
        assert found is not None
        return self.convert(self.bare(found), table.value)

    def _table(self, node: ast.Subscript, owner: Operand) -> Any:
        thing = owner.thing if isinstance(owner, Captured) else None
        if thing is None or not hasattr(thing, "native_get"):
            raise self.error(node, f"`{ast.unparse(node.value)}` has no items", "maps and pointers have")
        return thing

    def _key(self, node: ast.Subscript, table: Any) -> Value:
        return self.convert(self.typed(node.slice, table.key), u64)

    def set_item(self, target: ast.Subscript, value: ast.expr) -> None:
        """`map[key] = value`."""
        owner = self.operand(target.value)
        if isinstance(owner, Pointer):
            kind = owner.kind.__name__
            raise self.error(
                target, "the target's memory is written by name", f"write_{kind}(address, value)"
            )
        table = self._table(target, owner)
        word = self.convert(self.typed(value, table.value), u64)  # before the key, as in Python
        self._inline_values(target, table, "native_set", [self._key(target, table), word])

    def change_item(self, target: ast.Subscript, operator: ast.operator, value: ast.expr) -> None:
        """`map[key] += value`: one step that no other thread comes between."""
        table = self._table(target, self.operand(target.value))
        if not isinstance(operator, ast.Add | ast.Sub):
            raise self.error(target, "only += and -= are one step", "read it, and set it")
        key = self._key(target, table)
        amount = self.convert(self.typed(value, table.value), u64)
        if isinstance(operator, ast.Sub):
            amount = self.builder.make(u64, "sub", Constant(0, u64), amount)
        self._inline_values(target, table, "native_add", [key, amount])

    def _contained(self, node: ast.Compare, left: ast.expr, right: ast.expr, negated: bool) -> Operand:
        owner = self.operand(right)
        thing = owner.thing if isinstance(owner, Captured) else None
        if thing is None or not hasattr(thing, "native_contains"):
            raise self.error(node, f"`in` looks into a Hash; `{ast.unparse(right)}` is none")
        key = self.convert(self.typed(left, thing.key), u64)
        found = self._inline_values(node, thing, "native_contains", [key])
        assert found is not None
        value = self.bare(found)
        return self.builder.make(bool, "xor", value, Constant(1, bool)) if negated else value

    def _member(self, node: ast.Attribute, thing: Any) -> Operand:
        """An attribute of a map: a method, a place, a number."""
        if node.attr in getattr(thing, "native_methods", ()):
            return Captured(Method(thing, node.attr))
        if node.attr in getattr(thing, "native_symbols", ()) and self._active:
            return self.builder.make(u64, "symbol", about=thing.symbol(node.attr))
        value = getattr(thing, node.attr, None)
        if self._active and (isinstance(value, int | type) or hasattr(value, "native_methods")):
            return self.captured(node, value)
        raise self.error(node, f"`{ast.unparse(node)}` cannot be used in a handler")
