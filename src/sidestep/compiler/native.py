"""The decorator: a Python function that is compiled, and runs in plain Python as well."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import cached_property
from typing import Any, overload

from sidestep.compiler.diagnostics import Source
from sidestep.compiler.frontend import FUEL, check_function, compile_handler
from sidestep.compiler.ir import Function
from sidestep.compiler.plain import plain_python


class NativeFunction:
    """A function that can run in the target: a handler `(p, regs)`, or one that handlers call.

    A call runs it in plain Python, on the current machine (see machine.py).
    """

    def __init__(self, function: Callable[..., Any], fuel: int) -> None:
        functools.update_wrapper(self, function)
        self.function, self.fuel = function, fuel
        self.native_source = Source.of(function)
        check_function(self.native_source)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.plain(*arguments, **named)

    @cached_property
    def plain(self) -> Callable[..., Any]:
        """The function for plain Python."""
        if not self.is_handler:
            return self.function
        return plain_python(self.native_source, self.representation.locals, self.fuel)

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

    @cached_property
    def representation(self) -> Function:
        """What is compiled. Raises HandlerError."""
        return compile_handler(self.function, self.fuel)


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
