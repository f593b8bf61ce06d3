"""Errors of handlers: where in the source, what, and what to do about it."""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from sidestep.errors import SidestepError


class HandlerError(SidestepError):
    """A native handler that cannot be compiled: `file`, `line` and `column` (from 1) of the construct."""

    def __init__(self, what: str, hint: str, file: str, line: int, column: int, source: str) -> None:
        self.what, self.hint = what, hint
        self.file, self.line, self.column = file, line, column
        text = f"{file}:{line}:{column}: {what}"
        if source:
            stripped = source.lstrip()
            caret = " " * (column - 1 - (len(source) - len(stripped))) + "^"
            text += f"\n    {stripped.rstrip()}\n    {caret}"
        super().__init__(f"{text}\n  {hint}" if hint else text)


def _numbers(function: Callable[..., Any]) -> dict[str, int]:
    """The numbers that a function's free and global names stand for."""
    code = function.__code__
    found: dict[str, Any] = {name: function.__globals__.get(name) for name in code.co_names}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # it has no value yet
            found[name] = cell.cell_contents
    return {name: value for name, value in found.items() if isinstance(value, int)}


Place: TypeAlias = tuple[int, int, int | None, int | None]
"""Where a node of a syntax tree begins and ends: lines and columns."""


def place_of(node: ast.expr | ast.stmt) -> Place:
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


@dataclass(frozen=True, slots=True)
class Source:
    """A Python function with its syntax tree; line numbers are those of its file."""

    function: Callable[..., Any]
    tree: ast.FunctionDef
    file: str
    indent: int  # columns that were cut off its lines
    numbers: Mapping[str, int]  # from outside, as they are when the source is read

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Source:
        """Raises HandlerError where there is no source to be had, or no plain function."""
        code = getattr(function, "__code__", None)
        if code is None:
            raise HandlerError(
                f"{function!r} is not a Python function", "write it with def", "<unknown>", 0, 1, ""
            )
        if hasattr(function, "__wrapped__"):
            what = f"`{function.__name__}` has another decorator, which the target would not see"
            raise HandlerError(what, "@native alone", code.co_filename, code.co_firstlineno, 1, "")
        try:
            lines, first = inspect.getsourcelines(function)
        except (OSError, TypeError) as error:
            hint = "a handler must stand in a file"
            raise HandlerError("its source cannot be read", hint, code.co_filename, 0, 1, "") from error
        file = code.co_filename
        try:
            tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
        except SyntaxError as error:  # part of an expression of several lines
            raise HandlerError(
                "a handler is a function of its own", "write it with def", file, first, 1, lines[0]
            ) from error
        ast.increment_lineno(tree, first - 1)
        indent = len(lines[0]) - len(lines[0].lstrip())
        if not isinstance(tree, ast.FunctionDef):
            what = "a lambda" if not isinstance(tree, ast.AsyncFunctionDef) else "an async function"
            line = lines[tree.lineno - first]
            raise HandlerError(
                f"{what} cannot be a handler", "write it with def", file, tree.lineno, indent + 1, line
            )
        return cls(function, tree, file, indent, _numbers(function))

    def parameters(self) -> list[ast.arg]:
        """The plain parameters; raises HandlerError for other kinds."""
        found = self.tree.args
        for other in (found.vararg, found.kwarg, *found.kwonlyargs):
            if other is not None:
                raise self.error(other, f"the parameter `{other.arg}`", "only plain parameters can be taken")
        return [*found.posonlyargs, *found.args]

    def defaults(self) -> dict[str, int]:
        """Default values, by parameter; raises HandlerError for others than integers."""
        parameters = self.parameters()
        values = getattr(self.function, "__defaults__", None) or ()
        found = dict(
            zip([each.arg for each in parameters[len(parameters) - len(values) :]], values, strict=True)
        )
        for parameter in parameters:
            value = found.get(parameter.arg, 0)
            if not isinstance(value, int):
                raise self.error(parameter, f"the default value of `{parameter.arg}` is not a number")
        return found

    def locals(self) -> set[str]:
        """Every name that the function assigns to, its parameters included."""
        found = {each.arg for each in self.parameters()}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
        return found

    def error(self, node: ast.AST, what: str, hint: str = "") -> HandlerError:
        """The error of a construct."""
        line = getattr(node, "lineno", self.tree.lineno)
        text = linecache.getline(self.file, line)
        # Syntax trees count in bytes of UTF-8.
        before = text.encode()[: getattr(node, "col_offset", 0) + self.indent].decode(errors="replace")
        return HandlerError(what, hint, self.file, line, len(before) + 1, text)
