"""Calls: conversions, intrinsics, other native functions, methods of maps, events."""

from __future__ import annotations

import ast
import builtins
from typing import Any

from sidestep.compiler.backtrace import StackType, stack
from sidestep.compiler.event import Emission, Event, emit
from sidestep.compiler.inlining import method_source
from sidestep.compiler.integers import INTEGERS, Integer, u64, wrap
from sidestep.compiler.intrinsics import Intrinsic
from sidestep.compiler.ir import Constant, Value
from sidestep.compiler.items import Items, Method
from sidestep.compiler.machine import LONGEST_WALK
from sidestep.compiler.pointer import pointer
from sidestep.compiler.registers import ARGUMENTS
from sidestep.compiler.scope import Backtrace, Captured, Literal, Loose, Operand, Pointer, Special, TextAt
from sidestep.compiler.struct import Struct
from sidestep.compiler.text import COMM_LENGTH, StringType, comm, string

FARTHEST_WORD = 1 << 16
RETURN_ADDRESS_SLOTS = 1  # words between the stack pointer at a function's entry and its stack arguments


class Calls(Items):
    """Expressions with calls."""

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
            return self._inline(node, method_source(getattr(type(thing.owner), thing.name)), thing.owner)
        if thing is pointer:
            return self._pointer(node)
        if thing is string:
            return self._string(node)
        if thing is stack:
            return self._stack(node)
        if thing is comm:
            if node.args or node.keywords:
                raise self.error(node, "comm takes no value")
            return TextAt(None, COMM_LENGTH)
        name = ast.unparse(node.func)
        if isinstance(thing, type) and issubclass(thing, Event):
            raise self.error(node, "an event can only be emitted", f"emit({name}(...))")
        if isinstance(thing, type) and issubclass(thing, Struct):
            raise self.error(node, "a structure can only be the key of a Hash", f"table[{name}(...)]")
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
            return self._inline(node, thing.native_source, None)
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

    # Events

    def _emit(self, node: ast.Call) -> None:
        call = self._one(node)
        event = self.operand(call.func) if isinstance(call, ast.Call) else None
        kind = event.thing if isinstance(event, Captured) else None
        if not isinstance(call, ast.Call) or not (isinstance(kind, type) and issubclass(kind, Event)):
            raise self.error(node, "emit takes a new event", "emit(Name(field=value, ...))")
        sources: dict[str, tuple[Value | None, int | None]] = {}
        depth = 0
        for name, written in self.fields_given(call, kind).items():
            field = kind.fields[name]
            if isinstance(field, StackType):
                depth = self._depth(written, name, field)
            else:
                sources[name] = self._field(written, name, field)
        in_order = [sources[name] for name in kind.fields if name in sources]
        values = [value for value, _ in in_order if value is not None]
        if depth:
            values.append(self.builder.make(u64, "walk"))
        self.builder.do("emit", *values, about=Emission(kind, tuple(limit for _, limit in in_order), depth))

    def _depth(self, node: ast.expr, name: str, field: StackType) -> int:
        found = self.operand(node)
        if not isinstance(found, Backtrace):
            raise self.error(node, f"the field `{name}` is a backtrace", f"stack({field.depth})")
        if found.depth > field.depth:
            room = f"the field `{name}` has room for {field.depth} addresses, not {found.depth}"
            raise self.error(node, room)
        return found.depth

    def _stack(self, node: ast.Call) -> Operand:
        depth = self.value(self._one(node))
        if not isinstance(depth, Literal) or not 0 < depth.value <= LONGEST_WALK:
            raise self.error(node, f"the depth must be a known number from 1 to {LONGEST_WALK}")
        return Backtrace(depth.value)

    def _field(
        self, node: ast.expr, name: str, field: type[Integer] | StringType
    ) -> tuple[Value | None, int | None]:
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
