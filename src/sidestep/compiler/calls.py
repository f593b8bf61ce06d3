"""Calls: conversions, intrinsics, other native functions (inlined), methods and items of maps, events."""

from __future__ import annotations

import ast
import builtins
from typing import Any, NamedTuple

from sidestep.compiler.diagnostics import Source
from sidestep.compiler.event import Emission, Event, FieldType, emit
from sidestep.compiler.expressions import Expressions
from sidestep.compiler.integers import INTEGERS, Integer, u8, u16, u32, u64, wrap
from sidestep.compiler.intrinsics import Intrinsic
from sidestep.compiler.ir import Builder, Constant, Type, Value
from sidestep.compiler.pointer import pointer
from sidestep.compiler.registers import ARGUMENTS
from sidestep.compiler.scope import (
    Captured,
    Learned,
    Literal,
    Loose,
    Operand,
    Pointer,
    Scope,
    Special,
    TextAt,
)
from sidestep.compiler.text import COMM_LENGTH, LONGEST, StringType, comm, string

UNSIGNED = {kind.bits: kind for kind in (u8, u16, u32, u64)}
DEEPEST = 32
FARTHEST_WORD = 1 << 16
RETURN_ADDRESS_SLOTS = 1  # words between the stack pointer at a function's entry and its stack arguments


class Method(NamedTuple):
    """A method of a map."""

    owner: Any
    name: str


class Calls(Expressions):
    """Expressions with calls."""

    types: dict[str, Type]

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        self.loose_locals: set[str] = set()
        self._active: list[Any] = []
        self._inlined = 0

    def _Call(self, node: ast.Call) -> Operand:
        found = self.call(node, needed=True)
        assert found is not None
        return found

    def call(self, node: ast.Call, *, needed: bool) -> Operand | None:
        """A call; None if it gives nothing, which is an error where a value is `needed`."""
        if isinstance(node.func, ast.Attribute):
            owner = self.operand(node.func.value)
            if isinstance(owner, Special):
                return self._of_registers(node, node.func.attr, owner)
        function = self.operand(node.func)
        if not isinstance(function, Captured):
            raise self.error(node, f"`{ast.unparse(node.func)}` is not a function")
        result = self._call_of(node, function.thing)
        if result is None and needed:
            raise self.error(node, f"`{ast.unparse(node.func)}` gives no value")
        return result

    def _call_of(self, node: ast.Call, thing: Any) -> Operand | None:
        if thing is emit:
            self._emit(node)
            return None
        if isinstance(thing, Method):
            return self._inline(node, getattr(type(thing.owner), thing.name), thing.owner)
        if thing is pointer:
            return self._pointer(node)
        if thing is string:
            return self._string(node)
        if thing is comm:
            if node.args or node.keywords:
                raise self.error(node, "comm takes no value")
            return TextAt(None, COMM_LENGTH)
        if any(isinstance(argument, ast.Starred) for argument in node.args) or (
            node.keywords and not hasattr(thing, "native_source")
        ):
            raise self.error(node, "arguments are written one by one, without names here")
        if thing is bool:
            return self.truth(self._one(node))
        if isinstance(thing, type) and issubclass(thing, Integer) and thing in INTEGERS:
            return self._conversion(node, thing)
        if isinstance(thing, Intrinsic):
            return self._intrinsic(node, thing)
        if thing in (builtins.min, builtins.max):
            return self._extreme(node, "lt" if thing is builtins.min else "gt")
        if thing is builtins.abs:
            return self._absolute(node)
        if hasattr(thing, "native_source"):
            return self._inline(node, thing.function, None)
        name = ast.unparse(node.func)
        if isinstance(thing, type) and issubclass(thing, Event):
            raise self.error(node, "an event can only be emitted", f"emit({name}(...))")
        hint = "decorate it with @sidestep.native" if hasattr(thing, "__code__") else ""
        raise self.error(node, f"`{name}` cannot be called in the target", hint)

    def _one(self, node: ast.Call) -> ast.expr:
        if node.keywords:
            raise self.error(node, f"`{ast.unparse(node.func)}` takes no names")
        if len(node.args) != 1:
            raise self.error(node, f"`{ast.unparse(node.func)}` takes one value, {len(node.args)} were given")
        return node.args[0]

    # Registers

    def _of_registers(self, node: ast.Call, name: str, owner: Special) -> Operand:
        if owner.what != "regs" or name not in ("arg", "stack"):
            raise self.error(
                node, f"`{ast.unparse(node.func)}` is not known", "there are regs.arg(n) and regs.stack(n)"
            )
        number = self.value(self._one(node))
        if not isinstance(number, Literal) or not 0 <= number.value <= FARTHEST_WORD:
            raise self.error(node, f"the number must be known, and from 0 to {FARTHEST_WORD}")
        if name == "stack":
            return self.builder.make(u64, "stack", about=number.value)
        if number.value < len(ARGUMENTS):
            return self.builder.make(u64, "register", about=ARGUMENTS[number.value])
        slot = number.value - len(ARGUMENTS) + RETURN_ADDRESS_SLOTS
        return self.builder.make(u64, "stack", about=slot)

    # Conversions and simple functions

    def _conversion(self, node: ast.Call, kind: type[Integer]) -> Operand:
        argument = self._one(node)
        found = self.operand(argument)
        if isinstance(found, Pointer):
            return self.read(found, Constant(0, u64), kind)
        found = self.value(argument, found)
        if isinstance(found, Literal):
            return Constant(wrap(kind, found.value), kind)
        return self.convert(self.bare(found), kind)

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

    def _intrinsic(self, node: ast.Call, function: Intrinsic[Any]) -> Operand | None:
        if len(node.args) != len(function.parameters):
            count = len(function.parameters)
            raise self.error(
                node, f"`{ast.unparse(node.func)}` takes {count} values, {len(node.args)} were given"
            )
        values = [self.typed(each, kind) for each, kind in zip(node.args, function.parameters, strict=True)]
        if function.result is None:
            self.builder.do(function.label, *values, about=function.about)
            return None
        return self.builder.make(function.result, function.label, *values, about=function.about)

    def _extreme(self, node: ast.Call, comparison: str) -> Operand:
        if len(node.args) < 2:
            raise self.error(node, "min and max take two values or more")
        best = node.args[0]
        found: Operand = self.value(best)
        for each in node.args[1:]:
            a, b, kind = self._unified(node, best, found, each, self.value(each))
            if isinstance(a, Literal) and isinstance(b, Literal):
                found = min(a, b) if comparison == "lt" else max(a, b)
                continue
            if kind is bool:
                raise self.error(node, "truth values have no order")
            result = self.hidden(kind)
            self.builder.do("set_local", self.bare(a), about=result)
            other, done = self.builder.new_block(), self.builder.new_block()
            better = self.builder.make(bool, comparison, self.bare(b), self.bare(a))
            self.builder.branch(better, other, done)
            self.builder.at(other)
            self.builder.do("set_local", self.bare(b), about=result)
            self.builder.jump(done)
            self.builder.at(done)
            value = self.builder.make(kind, "get_local", about=result)
            names = frozenset[str]().union(*(x.names for x in (a, b) if isinstance(x, Loose)))
            found = Loose(value, names) if names else value
            self.join(node, kind)
        return found

    def _absolute(self, node: ast.Call) -> Operand:
        found = self.value(self._one(node))
        if isinstance(found, Literal):
            return Literal(abs(found.value))
        value = self.bare(found)
        if not issubclass(value.type, Integer):
            raise self.error(node, "a truth value has no sign")
        result = self.hidden(value.type)
        self.builder.do("set_local", value, about=result)
        negative, done = self.builder.new_block(), self.builder.new_block()
        self.builder.branch(self.builder.make(bool, "lt", value, Constant(0, value.type)), negative, done)
        self.builder.at(negative)
        opposite = self.builder.make(value.type, "sub", Constant(0, value.type), value)
        self.builder.do("set_local", opposite, about=result)
        self.builder.jump(done)
        self.builder.at(done)
        absolute = self.builder.make(value.type, "get_local", about=result)
        return Loose(absolute, found.names) if isinstance(found, Loose) else absolute

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

    # Events

    def _emit(self, node: ast.Call) -> None:
        call = self._one(node)
        event = self.operand(call.func) if isinstance(call, ast.Call) else None
        kind = event.thing if isinstance(event, Captured) else None
        if not isinstance(call, ast.Call) or not (isinstance(kind, type) and issubclass(kind, Event)):
            raise self.error(node, "emit takes a new event", "emit(Name(field=value, ...))")
        given = {str(keyword.arg): keyword.value for keyword in call.keywords}
        if call.args or given.keys() != kind.fields.keys():
            raise self.error(
                call, f"{kind.label} has the fields {', '.join(kind.fields)}", "name each of them"
            )
        by_name = {name: self._field(written, name, kind.fields[name]) for name, written in given.items()}
        sources = [by_name[name] for name in kind.fields]
        values = [value for value, _ in sources if value is not None]
        self.builder.do("emit", *values, about=Emission(kind, tuple(limit for _, limit in sources)))

    def _field(self, node: ast.expr, name: str, field: FieldType) -> tuple[Value | None, int | None]:
        """The value of a field, and None; for text its address and limit, for the thread's name None and
        0."""
        if not isinstance(field, StringType):
            return self.typed(node, field), None
        text = self.operand(node)
        if not isinstance(text, TextAt):
            raise self.error(node, f"the field `{name}` is text", f"string(pointer, {field.limit})")
        if text.limit > field.limit:
            raise self.error(node, f"the field `{name}` has room for {field.limit} bytes, not {text.limit}")
        return text.address, text.limit if text.address is not None else 0

    # Inlining

    def _inline(self, node: ast.Call, function: Any, owner: Any) -> Operand | None:
        source = Source.of(function)
        parameters = source.parameters()
        if owner is not None:
            parameters = parameters[1:]
        given = dict(zip([parameter.arg for parameter in parameters], node.args, strict=False))
        for keyword in node.keywords:
            if keyword.arg is None:
                raise self.error(keyword.value, "`**`", "write the arguments out")
            if keyword.arg in given or keyword.arg not in [parameter.arg for parameter in parameters]:
                raise self.error(node, f"`{ast.unparse(node.func)}` takes no second or other `{keyword.arg}`")
            given[keyword.arg] = keyword.value
        defaults = source.defaults()
        names = [parameter.arg for parameter in parameters]
        missing = [name for name in names if name not in given and name not in defaults]
        if missing or len(node.args) > len(parameters):
            wanted = ", ".join(names) or "nothing"
            raise self.error(node, f"`{ast.unparse(node.func)}` takes {wanted}")
        by_name = {parameter.arg: parameter for parameter in parameters}
        # In the order in which they are written, as Python evaluates them.
        arguments = {name: self._argument(written, source, by_name[name]) for name, written in given.items()}
        for name in names:
            if name not in arguments:
                arguments[name] = self._default(source, by_name[name], defaults[name])
        in_order = [arguments[name] for name in names]
        return self._inline_source(node, source, owner, names, in_order)

    def _argument(self, written: ast.expr, source: Source, parameter: ast.arg) -> Operand:
        found = self.operand(written)
        if isinstance(found, Special | Captured):
            return found
        if parameter.annotation is not None:
            return self.typed(written, self._annotation_in(source, parameter.annotation), found)
        if isinstance(found, Literal):
            hint = f"convert it, or annotate `{parameter.arg}`"
            raise self.error(written, f"the type of {found.value} is not known", hint)
        return found

    def _default(self, source: Source, parameter: ast.arg, value: int) -> Operand:
        kind: Type | None = None
        if parameter.annotation is not None:
            kind = self._annotation_in(source, parameter.annotation)
        elif isinstance(value, bool | Integer):
            kind = type(value)
        if kind is None:
            what = f"the default value of `{parameter.arg}` has no type"
            raise source.error(parameter, what, "annotate it")
        fits = isinstance(value, bool) if kind is bool else kind.holds(value) and not isinstance(value, bool)
        if not fits:
            raise source.error(parameter, f"the default value {value} is no {kind.__name__}")
        return Constant(int(value), kind)

    def _inline_values(self, node: ast.AST, owner: Any, name: str, values: list[Value]) -> Operand | None:
        """A map's own method, with values of the types that it asks for."""
        source = Source.of(getattr(type(owner), name))
        names = [parameter.arg for parameter in source.parameters()][1:]
        return self._inline_source(node, source, owner, names, list(values))

    def _inline_source(
        self, node: ast.AST, source: Source, owner: Any, names: list[str], arguments: list[Operand]
    ) -> Operand | None:
        if source.function in self._active:
            raise self.error(node, f"`{source.function.__name__}` calls itself", "use a loop")
        if len(self._active) >= DEEPEST:
            raise self.error(node, "calls are nested too deeply")
        self._inlined += 1
        scope = Scope(source.function, f"{source.function.__name__}.{self._inlined}.", {}, source.locals())
        for name, argument in zip(names, arguments, strict=True):
            if isinstance(argument, Pointer | TextAt | Captured | Special):
                scope.special[name] = argument
                continue
            place = scope.prefix + name
            value = self._settled_argument(place, argument)
            self.builder.function.locals[place] = value.type
            self.builder.do("set_local", value, about=place)
        if owner is not None:
            scope.special[source.parameters()[0].arg] = Captured(owner)
        outer = self.scope, self.source, self.builder.line
        self.scope, self.source = scope, source
        self._active.append(source.function)
        try:
            return self.inlined_body(source, scope)
        finally:
            self._active.pop()
            self.scope, self.source, self.builder.line = outer

    def _settled_argument(self, place: str, argument: Operand) -> Value:
        kind = self.types.get(place)
        if isinstance(argument, Loose):
            if kind is not None and kind is not argument.value.type:
                raise Learned(argument.names, kind)
            self.loose_locals.add(place)
            return argument.value
        return self.bare(argument)

    def _annotation_in(self, source: Source, node: ast.expr) -> Type:
        outer = self.scope, self.source
        self.scope, self.source = Scope(source.function, "", {}, set()), source
        try:
            return self.annotation(node)
        finally:
            self.scope, self.source = outer

    def annotation(self, node: ast.expr) -> Type:
        raise NotImplementedError

    def inlined_body(self, source: Source, scope: Scope) -> Operand | None:
        raise NotImplementedError
