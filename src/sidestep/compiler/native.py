"""The decorator: a Python function that is compiled, and runs in plain Python as well."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, overload

from sidestep.compiler.diagnostics import Source
from sidestep.compiler.frontend import FUEL, Compilation, check_function, compile_function, compile_handler
from sidestep.compiler.integers import INTEGERS, u64
from sidestep.compiler.ir import Constant, Function, Type
from sidestep.compiler.plain import plain_python
from sidestep.compiler.pointer import pointer
from sidestep.compiler.registers import Registers
from sidestep.compiler.scope import Captured, Operand, Pointer, Special, TextAt
from sidestep.compiler.text import Text

TYPES: Mapping[str, Type] = {"bool": bool, **{kind.__name__: kind for kind in INTEGERS}}


class NativeFunction:
    """A function that can run in the target: a handler `(p, regs)`, or one that handlers call.

    A call runs it in plain Python, on the current machine (see machine.py).
    """

    def __init__(self, function: Callable[..., Any], fuel: int) -> None:
        functools.update_wrapper(self, function)
        self.function, self.fuel = function, fuel
        self._plain_calls: dict[Any, Callable[..., Any]] = {}
        self.native_source = Source.of(function)
        check_function(self.native_source)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if self.is_handler:
            return self.plain(*arguments, **named)
        return self._called(self._signature.bind(*arguments, **named))

    @cached_property
    def plain(self) -> Callable[..., Any]:
        """A handler for plain Python."""
        return plain_python(self.native_source, self.compilation, self.fuel)

    @cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(self.function)

    def _called(self, bound: inspect.BoundArguments) -> Any:
        """A function that is no handler, compiled for the types of its arguments, in plain Python."""
        bound.apply_defaults()
        annotations = inspect.get_annotations(self.function)
        parameters: dict[str, Type] = {}
        special: dict[str, Operand] = {}
        for name, value in bound.arguments.items():
            kind = _type_of(annotations[name]) if name in annotations else type(value)
            if kind is bool or kind in INTEGERS:
                bound.arguments[name] = _taken(name, kind, value)
                parameters[name] = kind
            else:
                special[name] = _special(value)
        key = (*parameters.items(), *special.items())
        if key not in self._plain_calls:
            compilation = compile_function(
                self.native_source, special, parameters, fuel=self.fuel, called=True
            )
            self._plain_calls[key] = plain_python(self.native_source, compilation, self.fuel)
        return self._plain_calls[key](*bound.args, **bound.kwargs)

    @property
    def is_handler(self) -> bool:
        return [each.arg for each in self.native_source.parameters()][1:2] == ["regs"]

    @property
    def emits(self) -> bool:
        """Whether it emits events."""
        return any(operation.name == "emit" for operation in self.representation.operations())

    def compile(self) -> None:
        """Raises HandlerError for what cannot be compiled."""
        assert self.representation.blocks

    @property
    def representation(self) -> Function:
        """What is compiled. Raises HandlerError."""
        return self.compilation.function

    @cached_property
    def compilation(self) -> Compilation:
        return compile_handler(self.native_source, self.fuel)


def _type_of(annotation: Any) -> Any:
    if isinstance(annotation, str):
        return TYPES.get(annotation.rpartition(".")[2])
    return annotation


def _taken(name: str, kind: Type, value: Any) -> Any:
    """An argument as its parameter has it. TypeError for what would be refused in a handler."""
    fits = type(value) is kind or (type(value) is int and kind is not bool and kind.holds(value))
    if not fits:
        raise TypeError(f"{name} is {kind.__name__}; {value!r} was given")
    return kind(value)


def _special(value: Any) -> Operand:
    if isinstance(value, Registers):
        return Special("regs")
    if isinstance(value, Text):
        return TextAt(None if value.pointer is None else Constant(0, u64), value.limit)
    return Pointer(Constant(0, u64), value.kind) if isinstance(value, pointer) else Captured(value)


@overload
def native(function: Callable[..., Any], /) -> NativeFunction: ...
@overload
def native(*, fuel: int = FUEL) -> Callable[[Callable[..., Any]], NativeFunction]: ...
def native(function: Callable[..., Any] | None = None, /, *, fuel: int = FUEL) -> Any:
    """Compile a Python function for the target.

    `fuel` bounds the turns of all its loops together; a handler that uses it up ends, and a fault is counted.
    Raises HandlerError with file, line and column for what cannot be compiled.
    """
    if function is None:
        return lambda function: _made(function, fuel)
    return _made(function, fuel)


def _made(function: Callable[..., Any], fuel: int) -> NativeFunction:
    made = NativeFunction(function, fuel)
    if made.is_handler:
        made.compile()
    return made
