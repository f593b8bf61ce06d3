"""What has items or attributes: memory of the target, and maps."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from sidestep.compiler.inlining import Inlining
from sidestep.compiler.integers import INTEGERS, Integer, u64
from sidestep.compiler.ir import Builder, Constant, Space, Type, Value
from sidestep.compiler.keys import KeyType, key_words, word_count
from sidestep.compiler.scope import Captured, Characters, Literal, Operand, Pointer, TextAt
from sidestep.compiler.struct import Struct
from sidestep.compiler.text import LONGEST, StringType
from sidestep.events.layout import WORD


class Method(NamedTuple):
    """A method of a map."""

    owner: Any
    name: str


class Items(Inlining):
    """Expressions with pointers, text and maps."""

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        self._spaces = 0  # that are in use

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
        with self._spaces_given_back():
            found = self._inline_values(node, table, "native_get", [self.key(node.slice, table)])
        assert found is not None
        return self.convert(self.bare(found), table.value)

    def _table(self, node: ast.Subscript, owner: Operand) -> Any:
        thing = owner.thing if isinstance(owner, Captured) else None
        if thing is None or not hasattr(thing, "native_get"):
            raise self.error(node, f"`{ast.unparse(node.value)}` has no items", "maps and pointers have")
        return thing

    # Keys

    def key(self, node: ast.expr, table: Any) -> Value:
        """The word that a map's methods take for a key: its number, or where its words are."""
        kind: KeyType = table.key
        if isinstance(kind, StringType):
            return self._text_key(node, table, kind)
        if issubclass(kind, Struct):
            return self._struct_key(node, kind)
        return self.convert(self.typed(node, kind), u64)

    def _text_key(self, node: ast.expr, table: Any, kind: StringType) -> Value:
        found = self.operand(node)
        if isinstance(found, Characters):
            try:
                words = key_words(kind, found.value)
            except ValueError as error:
                raise self.error(node, str(error)) from None
            return self._words([Constant(word, u64) for word in words])
        if not isinstance(found, TextAt):
            raise self.error(node, "the key is text", f"string(pointer, {kind.limit})")
        if found.limit > kind.limit:
            raise self.error(node, f"the key has room for {kind.limit} bytes, not {found.limit}")
        space = self._space(word_count(kind))
        pointers = () if found.address is None else (found.address,)
        count = self.builder.make(u64, "read_text", space, *pointers, about=found.limit)
        self._inline_values(node, table, "settle", [space, count, Constant(found.limit, u64)])
        return space

    def _struct_key(self, node: ast.expr, kind: type[Struct]) -> Value:
        function = self.operand(node.func) if isinstance(node, ast.Call) else None
        if not isinstance(node, ast.Call) or function != Captured(kind):
            raise self.error(node, f"the key is {kind.label}", f"{kind.label}(field=value, ...)")
        values: dict[str, Value] = {}
        for name, written in self.fields_given(node, kind).items():
            field = kind.fields[name]
            assert isinstance(field, type)
            values[name] = self.convert(self.typed(written, field), u64)
        return self._words([values[name] for name in kind.fields])

    def fields_given(self, call: ast.Call, kind: type[Struct]) -> dict[str, ast.expr]:
        """What is written for each field, in the order in which it is written."""
        given = {str(keyword.arg): keyword.value for keyword in call.keywords}
        if call.args or given.keys() != kind.fields.keys():
            raise self.error(
                call, f"{kind.label} has the fields {', '.join(kind.fields)}", "name each of them"
            )
        return given

    @contextmanager
    def _spaces_given_back(self) -> Iterator[None]:
        """Words that are taken within the `with` can be taken again behind it."""
        before = self._spaces
        yield
        self._spaces = before

    def _space(self, words: int) -> Value:
        """Words on the handler's own stack, all 0."""
        self._spaces += 1
        return self.builder.make(u64, "space", about=Space(self._spaces, words))

    def _words(self, values: Sequence[Value]) -> Value:
        space = self._space(len(values))
        for number, value in enumerate(values):
            place = self.builder.make(u64, "add", space, Constant(WORD * number, u64))
            self.builder.do("store", place, value)
        return space

    # Changing items

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
        with self._spaces_given_back():
            self._inline_values(target, table, "native_set", [self.key(target.slice, table), word])
        self.builder.effects += 1

    def change_item(self, target: ast.Subscript, operator: ast.operator, value: ast.expr) -> None:
        """`map[key] += value`: one step that no other thread comes between."""
        table = self._table(target, self.operand(target.value))
        if not isinstance(operator, ast.Add | ast.Sub):
            raise self.error(target, "only += and -= are one step", "read it, and set it")
        with self._spaces_given_back():
            key = self.key(target.slice, table)
            amount = self._without_effects(value, table.value)
            if isinstance(operator, ast.Sub):
                amount = self.builder.make(u64, "sub", Constant(0, u64), amount)
            self._inline_values(target, table, "native_add", [key, amount])

    def _without_effects(self, node: ast.expr, kind: Type) -> Value:
        """A value to add to an item: Python reads the item before it, the one step comes behind."""
        effects = self.builder.effects
        value = self.convert(self.typed(node, kind), u64)
        if self.builder.effects != effects:
            what = f"`{ast.unparse(node)}` changes something while an item is changed"
            raise self.error(node, what, "give it a name before")
        return value

    def delete_item(self, target: ast.expr) -> None:
        """`del map[key]`."""
        owner = self.operand(target.value) if isinstance(target, ast.Subscript) else None
        thing = owner.thing if isinstance(owner, Captured) else None
        if not isinstance(target, ast.Subscript) or not hasattr(thing, "native_delete"):
            raise self.error(target, f"`{ast.unparse(target)}` cannot be deleted", "a key of a Hash can")
        if not getattr(thing, "deletable", False):
            made = "make it with Hash(..., deletable=True)"
            raise self.error(target, f"no key of `{ast.unparse(target.value)}` can be deleted", made)
        with self._spaces_given_back():
            self._inline_values(target, thing, "native_delete", [self.key(target.slice, thing)])

    def _contained(self, node: ast.Compare, left: ast.expr, right: ast.expr, negated: bool) -> Operand:
        owner = self.operand(right)
        thing = owner.thing if isinstance(owner, Captured) else None
        if thing is None or not hasattr(thing, "native_contains"):
            raise self.error(node, f"`in` looks into a Hash; `{ast.unparse(right)}` is none")
        with self._spaces_given_back():
            found = self._inline_values(node, thing, "native_contains", [self.key(left, thing)])
        assert found is not None
        value = self.bare(found)
        return self.builder.make(bool, "xor", value, Constant(1, bool)) if negated else value

    def _member(self, node: ast.Attribute, thing: Any) -> Operand:
        """An attribute of a map: a method, a place, a number."""
        inside = self.owner is not None  # the code of a map
        if node.attr in (
            *getattr(thing, "native_methods", ()),
            *(getattr(thing, "native_parts", ()) if inside else ()),
        ):
            return Captured(Method(thing, node.attr))
        if inside and node.attr in getattr(thing, "native_symbols", ()):
            return self.builder.make(u64, "symbol", about=thing.symbol(node.attr))
        value = getattr(thing, node.attr, None)
        if inside and (isinstance(value, int | type) or hasattr(value, "native_methods")):
            return self.captured(node, value)
        raise self.error(node, f"`{ast.unparse(node)}` cannot be used in a handler")
