"""Loops, and the fuel that they use."""

from __future__ import annotations

import ast
import builtins

from sidestep.compiler import ir
from sidestep.compiler.calls import Calls
from sidestep.compiler.integers import Integer, i64
from sidestep.compiler.ir import Builder, Constant
from sidestep.compiler.scope import Captured, Literal, Loose, Operand


class Loops(Calls):
    """Statements that repeat others."""

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        self._fuel_local: str | None = None
        self._loops: list[tuple[ir.Block, ir.Block]] = []  # where continue and break go

    def _do_While(self, statement: ast.While) -> None:
        test, body, otherwise, done = (self.builder.new_block() for _ in range(4))
        self.builder.jump(test)
        self.builder.at(test)
        if self.owner is None or isinstance(statement.test, ast.Constant):
            self.burn()
        self.builder.branch(self.truth(statement.test), body, otherwise)
        self._loop(statement, test, body, otherwise, done)

    def _loop(
        self,
        statement: ast.While | ast.For,
        again: ir.Block,
        body: ir.Block,
        otherwise: ir.Block,
        done: ir.Block,
    ) -> None:
        self.builder.at(body)
        self._loops.append((again, done))
        self._body(statement.body)
        self._loops.pop()
        self.builder.jump(again)
        self.builder.at(otherwise)
        self._body(statement.orelse)
        self.builder.jump(done)
        self.builder.at(done)

    def burn(self) -> None:
        """One turn of a loop: at the end of the fuel the handler ends. Of the code of maps only `while True`
        uses fuel, its other loops are short."""
        if self._fuel_local is None:
            self._fuel_local = self.hidden(i64)
        left = self.builder.make(i64, "get_local", about=self._fuel_local)
        less = self.builder.make(i64, "sub", left, Constant(1, i64))
        self.builder.do("set_local", less, about=self._fuel_local)
        self.builder.fault_if(self.builder.make(bool, "eq", less, Constant(0, i64)), "out of fuel")

    def _do_For(self, statement: ast.For) -> None:
        """`for i in range(...)`: never beyond the range's end, so that nothing wraps around."""
        if not isinstance(statement.target, ast.Name):
            raise self.error(statement.target, "a loop has one variable")
        bounds = self._range(statement)
        start, stop, step = bounds
        first, last, kind = self.same(statement.iter, start, stop)
        if isinstance(first, Literal) and isinstance(last, Literal):
            name = self.scope.prefix + statement.target.id
            kind = self.types.get(name, i64)
        a = self.typed(start, kind, first) if isinstance(first, Literal) else self.bare(first)
        b = self.typed(stop, kind, last) if isinstance(last, Literal) else self.bare(last)
        assert issubclass(kind, Integer)
        if not kind.holds(step) or (step < 0 and not kind.signed):
            raise self.error(statement.iter, f"a step of {step} in a range of {kind.__name__}")
        upcoming = self.hidden(kind)
        test, body, advance, otherwise, done = (self.builder.new_block() for _ in range(5))
        self.builder.do("set_local", a, about=upcoming)
        entering = self.builder.make(bool, "lt" if step > 0 else "gt", a, b)
        self.builder.branch(entering, test, otherwise)
        self.builder.at(test)
        if self.owner is None:
            self.burn()
        here = self.builder.make(kind, "get_local", about=upcoming)
        names = frozenset[str]().union(*(each.names for each in (first, last) if isinstance(each, Loose)))
        found: Operand = Loose(here, names) if names else here
        if isinstance(first, Literal) and isinstance(last, Literal):
            found = Loose(here, frozenset((self.scope.prefix + statement.target.id,)))
            if self.types.get(self.scope.prefix + statement.target.id) is not None:
                found = here
        self._set(statement.target, statement.target, found)
        self.builder.jump(body)
        self._loop(statement, advance, body, otherwise, done)
        self.builder.at(advance)
        here = self.builder.make(kind, "get_local", about=upcoming)
        left = (
            self.builder.make(kind, "sub", b, here) if step > 0 else self.builder.make(kind, "sub", here, b)
        )
        distance = self.unsigned(left)
        over = self.builder.make(bool, "le", distance, Constant(abs(step), distance.type))
        onwards = self.builder.new_block()
        self.builder.branch(over, otherwise, onwards)
        self.builder.at(onwards)
        self.builder.do(
            "set_local", self.builder.make(kind, "add", here, Constant(step, kind)), about=upcoming
        )
        self.builder.jump(test)
        self.builder.at(done)

    def _range(self, statement: ast.For) -> tuple[ast.expr, ast.expr, int]:
        call = statement.iter
        function = self.operand(call.func) if isinstance(call, ast.Call) else None
        if not isinstance(call, ast.Call) or function != Captured(builtins.range):
            raise self.error(statement.iter, "only a range can be looped over", "for i in range(...):")
        if call.keywords or not 1 <= len(call.args) <= 3:
            raise self.error(call, "range takes one to three numbers")
        zero = ast.copy_location(ast.Constant(0), call)
        start, stop = (zero, call.args[0]) if len(call.args) == 1 else (call.args[0], call.args[1])
        step = 1
        if len(call.args) == 3:
            found = self.value(call.args[2])
            if not isinstance(found, Literal) or found.value == 0:
                raise self.error(call.args[2], "the step must be a known number other than 0")
            step = found.value
        return start, stop, step

    def _do_Break(self, statement: ast.Break) -> None:
        self.builder.jump(self._loops[-1][1])

    def _do_Continue(self, statement: ast.Continue) -> None:
        self.builder.jump(self._loops[-1][0])

    def _body(self, statements: list[ast.stmt]) -> None:
        raise NotImplementedError

    def _set(self, target: ast.Name, node: ast.expr, found: Operand) -> None:
        raise NotImplementedError
