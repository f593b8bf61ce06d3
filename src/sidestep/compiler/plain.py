"""The same function for plain Python: locals keep the types that the compiler found, loops use fuel."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Mapping
from typing import Any

from sidestep.compiler.diagnostics import Place, Source, place_of
from sidestep.compiler.frontend import Compilation
from sidestep.compiler.ir import Type
from sidestep.compiler.machine import HandlerFault

FAULTS = (HandlerFault, ZeroDivisionError, AssertionError, ValueError, IndexError)
"""What ends a handler early in plain Python."""


def plain_python(source: Source, compilation: Compilation, fuel: int) -> Callable[..., Any]:
    """The function with conversions where it assigns, and where a plain number can come out of an expression.
    Every call has its own fuel."""
    types = compilation.function.locals
    joins = {place: kind for (of, place), kind in compilation.joins.items() if of is source.function}
    tree = _Typed(types, joins).visit(copy.deepcopy(source.tree))
    assert isinstance(tree, ast.FunctionDef)
    tree.decorator_list = []
    tree.body.insert(0, _assign("__turns", ast.List([ast.Constant(fuel)], ast.Load())))
    function = source.function
    names: dict[str, Any] = {_converter(kind): kind for kind in (*types.values(), *joins.values())}
    names |= {"__burn": _burn}
    free = function.__code__.co_freevars
    cells = {name: cell.cell_contents for name, cell in zip(free, function.__closure__ or (), strict=True)}
    cells.update(source.numbers)  # as the compiler took them
    arguments = ast.arguments(
        posonlyargs=[],
        args=[ast.arg(name) for name in (*names, *cells)],
        kwonlyargs=[],
        kw_defaults=[],
        defaults=[],
    )
    returned = ast.Return(ast.Name(tree.name, ast.Load()))
    maker = ast.parse("def __make(): pass").body[0]
    assert isinstance(maker, ast.FunctionDef)
    maker.args, maker.body = arguments, [tree, returned]
    module = ast.fix_missing_locations(ast.Module([maker], []))
    made: dict[str, Any] = {}
    exec(compile(module, source.file, "exec"), function.__globals__, made)
    result: Callable[..., Any] = made["__make"](**names, **cells)
    return result


def _burn(turns: list[int]) -> bool:
    turns[0] -= 1
    if turns[0] == 0:
        raise HandlerFault("out of fuel")
    return True


def _assign(name: str, value: ast.expr) -> ast.Assign:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def _converter(kind: Type) -> str:
    return f"__{kind.__name__}"


class _Typed(ast.NodeTransformer):
    def __init__(self, types: Mapping[str, Type], joins: Mapping[Place, Type]) -> None:
        self.types, self.joins = types, joins

    def visit(self, node: ast.AST) -> Any:
        changed = super().visit(node)
        kind = self.joins.get(place_of(node)) if isinstance(node, ast.expr) else None
        return changed if kind is None else _convert(kind, changed)

    def converted(self, target: ast.expr, value: ast.expr) -> ast.expr:
        kind = self.types.get(target.id) if isinstance(target, ast.Name) else None
        return value if kind is None else _convert(kind, value)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        node.value = self.converted(node.targets[0], node.value)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        if node.value is None:
            return node
        return ast.copy_location(_assign_to(node.target, self.converted(node.target, node.value)), node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.target, ast.Name):
            return node
        value = ast.BinOp(ast.Name(node.target.id, ast.Load()), node.op, node.value)
        return ast.copy_location(_assign_to(node.target, self.converted(node.target, value)), node)

    def visit_While(self, node: ast.While) -> ast.AST:
        self.generic_visit(node)
        # The compiled loop uses fuel before each test, the last one included.
        node.test = ast.BoolOp(ast.And(), [_burning().value, node.test])
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        assert isinstance(node.target, ast.Name)
        typed = _assign(node.target.id, self.converted(node.target, ast.Name(node.target.id, ast.Load())))
        node.body[:0] = [_burning(), typed]
        return node


def _convert(kind: Type, value: ast.expr) -> ast.expr:
    return ast.Call(ast.Name(_converter(kind), ast.Load()), [value], []) if kind is not bool else value


def _assign_to(target: ast.expr, value: ast.expr) -> ast.Assign:
    return ast.Assign([target], value)


def _burning() -> ast.Expr:
    return ast.Expr(ast.Call(ast.Name("__burn", ast.Load()), [ast.Name("__turns", ast.Load())], []))
