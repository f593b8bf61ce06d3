"""Calls of functions of the subset: their statements take the place of the call."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache
from typing import Any

from sidestep.compiler.conditions import Conditions
from sidestep.compiler.diagnostics import Source
from sidestep.compiler.integers import Integer
from sidestep.compiler.ir import Builder, Constant, Type, Value
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

DEEPEST = 32


@cache
def method_source(function: Callable[..., Any]) -> Source:
    """The source of a map's method, which is there as long as its class."""
    return Source.of(function)


class Inlining(Conditions):
    """Expressions, with what functions need that are called in them."""

    types: dict[str, Type]

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        self.loose_locals: set[str] = set()
        self._active: list[Any] = []
        self._inlined = 0

    def _inline(self, node: ast.Call, source: Source, owner: Any) -> Operand | None:
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
        source = method_source(getattr(type(owner), name))
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
        scope = Scope.of(source, f"{source.function.__name__}.{self._inlined}.", {})
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
        outer = self.scope, self.source, self.owner, self.builder.where
        self.scope, self.source, self.owner = scope, source, owner
        self._active.append(source.function)
        try:
            return self.inlined_body(source, scope)
        finally:
            self._active.pop()
            self.scope, self.source, self.owner, self.builder.where = outer

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
        self.scope, self.source = Scope(source.function, "", {}, set(), source.numbers), source
        try:
            return self.annotation(node)
        finally:
            self.scope, self.source = outer

    def annotation(self, node: ast.expr) -> Type:
        raise NotImplementedError

    def inlined_body(self, source: Source, scope: Scope) -> Operand | None:
        raise NotImplementedError
