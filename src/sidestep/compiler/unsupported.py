"""What Python has and native handlers do not: what to say, and what to do instead, for every kind of node."""

from __future__ import annotations

import ast

MEMORY = "keep it in a map"
NUMBERS = "handlers compute with integers"

EXPRESSIONS: dict[type[ast.expr], tuple[str, str]] = {
    ast.NamedExpr: ("`:=` inside an expression", "assign in a statement of its own"),
    ast.Lambda: ("a lambda", "define a native function"),
    ast.Dict: ("a dict", MEMORY),
    ast.Set: ("a set", MEMORY),
    ast.List: ("a list", MEMORY),
    ast.Tuple: ("a tuple", "use several names"),
    ast.ListComp: ("a comprehension", "use a loop"),
    ast.SetComp: ("a comprehension", "use a loop"),
    ast.DictComp: ("a comprehension", "use a loop"),
    ast.GeneratorExp: ("a generator", "use a loop"),
    ast.Await: ("await", "a handler runs to its end"),
    ast.Yield: ("yield", "a handler runs to its end"),
    ast.YieldFrom: ("yield from", "a handler runs to its end"),
    ast.FormattedValue: ("formatted text", "emit the numbers and format them where they are read"),
    ast.JoinedStr: ("formatted text", "emit the numbers and format them where they are read"),
    ast.Starred: ("a starred expression", "write the arguments out"),
    ast.Slice: ("a slice", "read the elements one by one"),
}

STATEMENTS: dict[type[ast.stmt], tuple[str, str]] = {
    ast.FunctionDef: ("a function inside a handler", "define it outside, with @sidestep.native"),
    ast.AsyncFunctionDef: ("an async function", "a handler runs to its end"),
    ast.ClassDef: ("a class inside a handler", "define it outside"),
    ast.AsyncFor: ("async for", "a handler runs to its end"),
    ast.With: ("with", NUMBERS),
    ast.AsyncWith: ("async with", NUMBERS),
    ast.Match: ("match", "use if and elif"),
    ast.Raise: ("raise", "return, or use assert: a failed one is counted as a fault"),
    ast.Try: ("try", "a bad address ends the handler and is counted as a fault"),
    ast.Import: ("import", "import outside the handler"),
    ast.ImportFrom: ("import", "import outside the handler"),
    ast.Global: ("global", MEMORY),
    ast.Nonlocal: ("nonlocal", MEMORY),
}
if hasattr(ast, "TryStar"):
    STATEMENTS[ast.TryStar] = STATEMENTS[ast.Try]
if hasattr(ast, "TypeAlias"):
    STATEMENTS[ast.TypeAlias] = ("a type alias", "define it outside the handler")
