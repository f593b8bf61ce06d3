"""What native handlers refuse: the message, the hint, and the caret under the construct.

handler_refusals.txt has the snippets. Under the line that is refused stands `^ message | hint`, the caret
under the column that the error names. A snippet without a `def` is the body of a handler.
"""

from __future__ import annotations

import ast
import linecache
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from sidestep.compiler.diagnostics import HandlerError
from sidestep.compiler.frontend import _Frontend

SNIPPETS = Path(__file__).with_name("handler_refusals.txt")
AROUND = """
import os
from sidestep import *
from sidestep import random, string, u8, u16, u32, u64, i8, i16, i32, i64
counter, table, array, stats, histogram = Counter(), Hash(8, deletable=True), Array(4), Stats(), Histogram()
numbers, ratio, NAME, SIZE = [1, 2], 1.5, "text", 300
class Happened(Event):
    size: u64
    small: u8
class Flow(Struct):
    port: u16
    address: u32
class Traced(Event):
    where: stack(4)
names, flows = Hash(8, string(8), deletable=True), Hash(8, Flow, deletable=True)
fixed = Hash(8)
class Plain: pass
plain = Plain()
def unmarked(x): return x
@native
def double(value: u64, by: u64 = 2): return value * by
@native
def counted(value: u64) -> u64:
    counter.add(value)
    return value
@native
def emitted() -> u64:
    emit(Happened(size=1, small=1))
    return u64(1)
@native
def untyped(value): return value
@native
def nothing(value: u64): counter.add(value)
"""
ACCEPTED = """
'a docstring'
x = u8(regs.arg(0))
y: u64 = 5
z = -1
done = False
for i in range(3, 10, 2):
    if i == 5:
        continue
    elif i > 7:
        break
    y += double(now(), by=3) if x > 3 else 1
else:
    pass
while y > 3 and not done or z == i16(4):
    y -= 1
    z *= 2
    y = ((y << 1) >> 2 | 1 & 3 ^ 4) % 7 // 2
    y = ~y
    x = +x
assert x <= 3 or x >= 5 or x != 4, "a message"
if 3 in table or 4 not in table:
    table[3] = array[1]
nothing(y)
del table[3], table[4]
names[string(regs.di, 8)] += flows[Flow(port=1, address=2)]
if "alpha" in names:
    del names["alpha"], flows[Flow(address=2, port=1)]
emit(Happened(size=y, small=x))
emit(Traced(where=stack(4)))
if string(regs.di, 8) == "/tmp":
    return
return 1 < y < 3
"""
UNREACHABLE = {
    ast.Await, ast.AsyncFor, ast.AsyncWith, ast.comprehension, ast.ExceptHandler, ast.withitem, ast.alias,
}  # fmt: skip
"""Parts of what is refused as a whole, and what Python itself refuses in a function."""


class Snippet(NamedTuple):
    text: str
    line: int
    column: int
    what: str
    hint: str


def snippets() -> Iterator[Snippet]:
    """The snippets, each with the place of its error (from 1) in its own text."""
    for block in SNIPPETS.read_text().rstrip("\n").split("\n\n"):
        lines = block.split("\n")
        (at,) = (number for number, line in enumerate(lines) if re.match(r" *\^ ", line))
        caret = lines.pop(at)
        what, _, hint = caret.strip().removeprefix("^ ").partition(" | ")
        yield Snippet("\n".join(lines), at, caret.index("^") + 1, what, hint)


def as_module(snippet: str) -> tuple[str, int, int]:
    """The text to execute, how many lines were put before the snippet, and how far it was moved right."""
    if "native" in snippet:
        return AROUND + snippet + "\n", AROUND.count("\n"), 0
    head = AROUND + "@native\ndef handler(p, regs):\n"
    return head + textwrap.indent(snippet, "    ") + "\n", head.count("\n"), 4


def execute(text: str, file: str) -> None:
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    exec(compile(text, file, "exec"), {"__name__": "snippet"})


@pytest.mark.parametrize("snippet", [*snippets()], ids=lambda snippet: snippet.text.splitlines()[-1])
def test_refused(snippet: Snippet) -> None:
    text, before, moved = as_module(snippet.text)
    file = "<snippet>"
    with pytest.raises(HandlerError) as caught:
        execute(text, file)
    error = caught.value
    assert (error.line - before, error.column - moved, error.what, error.hint) == snippet[1:], str(error)
    source = text.splitlines()[error.line - 1]
    shown = str(error).splitlines()
    assert shown[0] == f"{file}:{error.line}:{error.column}: {error.what}"
    caret = next(line for line in shown if line.strip() == "^")
    code = shown[shown.index(caret) - 1]
    assert code[caret.index("^") :] == source[error.column - 1 :].rstrip()


def test_accepted() -> None:
    execute(as_module(ACCEPTED)[0], "<accepted>")


def concrete(base: type[ast.AST]) -> set[type[ast.AST]]:
    """The kinds of nodes that a parser makes."""
    found: set[type[ast.AST]] = set()
    for kind in base.__subclasses__():
        found |= concrete(kind) or {kind}
    return found


def test_every_kind_of_node_is_supported_or_refused() -> None:
    seen: set[type[ast.AST]] = set()
    for text in [ACCEPTED, *(snippet.text for snippet in snippets())]:
        seen |= {type(node) for node in ast.walk(ast.parse(as_module(text)[0]))}
    every = set().union(
        *map(concrete, (ast.stmt, ast.expr, ast.boolop, ast.operator, ast.unaryop, ast.cmpop))
    )
    deprecated = {kind for kind in every if issubclass(kind, ast.Constant) and kind is not ast.Constant}
    newer = {
        getattr(ast, name) for name in ("TypeAlias", "TemplateStr", "Interpolation") if hasattr(ast, name)
    }
    missing = every - seen - UNREACHABLE - deprecated - newer
    assert not {kind.__name__ for kind in missing}


def test_an_error_of_the_compiler_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr(_Frontend, "_do_Pass", broken)
    with pytest.raises(HandlerError, match=r"an internal error of the compiler \(KeyError: 'lost'\)"):
        execute(as_module("pass")[0], "<internal>")


def test_a_handler_that_is_too_large() -> None:
    body = "\n".join(f"if regs.di == {number}: counter.add(1)" for number in range(2000))
    with pytest.raises(HandlerError, match="the handler is too large"):
        execute(as_module(body)[0], "<large>")
