"""Names in a handler: its locals with their types, and what it captures."""

from __future__ import annotations

import builtins
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from sidestep.compiler.diagnostics import Source
from sidestep.compiler.integers import Integer
from sidestep.compiler.ir import Type, Value


class Literal(NamedTuple):
    """A plain integer that has no type yet."""

    value: int


class Loose(NamedTuple):
    """A value whose type is only i64 because nothing has said otherwise of these locals yet."""

    value: Value
    names: frozenset[str]


class Pointer(NamedTuple):
    """An address with the type of what is there."""

    address: Value
    kind: type[Integer]


class TextAt(NamedTuple):
    """Text in memory; without an address the thread's name."""

    address: Value | None
    limit: int


class Backtrace(NamedTuple):
    """The stack as it is, for an event."""

    depth: int


class Named(NamedTuple):
    """A name for a pointer or for text: the local that has its address, and what is there."""

    local: str
    kind: type[Integer] | None
    limit: int


class Characters(NamedTuple):
    """A constant text, to compare with."""

    value: str | bytes


class Captured(NamedTuple):
    """An object from outside the handler: a function, a map, an event class, a module."""

    thing: Any


class Special(NamedTuple):
    """A parameter of the handler that is no value: `p` or `regs`."""

    what: str


Operand: TypeAlias = (
    Literal | Loose | Pointer | TextAt | Backtrace | Named | Characters | Captured | Special | Value
)


class Learned(Exception):
    """A local has another type than was thought: compile again with that."""

    def __init__(self, names: frozenset[str], kind: Type) -> None:
        super().__init__(names, kind)
        self.names, self.kind = names, kind


@dataclass(slots=True)
class Scope:
    """The names of one function, inlined: `prefix` makes its locals differ from those of others."""

    function: Callable[..., Any]
    prefix: str
    special: dict[str, Operand]
    locals: set[str]
    numbers: Mapping[str, int]

    @classmethod
    def of(cls, source: Source, prefix: str, special: dict[str, Operand]) -> Scope:
        return cls(source.function, prefix, special, source.locals(), source.numbers)

    def captured(self, name: str) -> Any:
        """A free or global name's object; raises KeyError."""
        if name in self.numbers:
            return self.numbers[name]
        code = getattr(self.function, "__code__", None)
        closure = getattr(self.function, "__closure__", None) or ()
        if code is not None and name in code.co_freevars:
            return closure[code.co_freevars.index(name)].cell_contents
        found = getattr(self.function, "__globals__", {})
        if name in found:
            return found[name]
        return vars(builtins)[name]


def is_module(thing: Any) -> bool:
    return isinstance(thing, types.ModuleType)
