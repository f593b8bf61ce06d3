"""From a Python function to the intermediate representation: statements, and the functions that are called,
inlined."""

from __future__ import annotations

import ast
from typing import Any, NamedTuple

from sidestep.compiler import ir
from sidestep.compiler.diagnostics import HandlerError, Source
from sidestep.compiler.integers import INTEGERS, i64, u64
from sidestep.compiler.ir import Builder, Constant, Function, Jump, Return, Type
from sidestep.compiler.loops import Loops
from sidestep.compiler.operands import Joins
from sidestep.compiler.operators import BINARY
from sidestep.compiler.registers import register_of
from sidestep.compiler.scope import (
    Backtrace,
    Captured,
    Characters,
    Learned,
    Literal,
    Loose,
    Named,
    Operand,
    Pointer,
    Scope,
    Special,
    TextAt,
)
from sidestep.compiler.unsupported import EXPRESSIONS, STATEMENTS

FUEL = 1 << 16
"""Turns of loops in one run of a handler."""
LARGEST_FUNCTION = 4096  # blocks


class Compilation(NamedTuple):
    """A function's representation, and what plain Python needs to know of its types."""

    function: Function
    joins: Joins


def compile_handler(source: Source, fuel: int = FUEL) -> Compilation:
    """A handler, a function of `(p, regs)`. Raises HandlerError."""
    parameters = source.parameters()
    if len(parameters) != 2:
        raise source.error(source.tree, "a handler takes (p, regs)", "def handler(p, regs):")
    special: dict[str, Operand] = {parameters[0].arg: Special("p"), parameters[1].arg: Special("regs")}
    return compile_function(source, special, {}, fuel=fuel)


def compile_function(
    source: Source,
    special: dict[str, Operand],
    parameters: dict[str, Type],
    *,
    fuel: int = FUEL,
    called: bool = False,
) -> Compilation:
    """A function. `parameters` become locals that the caller sets; `called`: by other functions, so that it
    may return any value. Raises HandlerError."""
    types: dict[str, Type] = dict(parameters)
    while True:
        frontend = _Frontend(source.function.__name__, types, fuel)
        try:
            function = frontend.compile(source, special, parameters, called)
        except Learned as learned:
            for name in learned.names:
                if name in types:
                    raise AssertionError(f"{name} has two types") from learned
                types[name] = learned.kind
        except RecursionError:
            raise source.error(source.tree, "the handler is nested too deeply", "split it") from None
        except HandlerError:
            raise
        except Exception as error:
            where = ast.Pass(lineno=frontend.builder.where.line or source.tree.lineno, col_offset=0)
            what = f"an internal error of the compiler ({type(error).__name__}: {error})"
            raise frontend.source.error(where, what, "report it with this function") from error
        else:
            return Compilation(function, frontend.joins)


class _Frontend(Loops):
    """One attempt, with what is known of the locals' types by now."""

    def __init__(self, name: str, types: dict[str, Type], fuel: int) -> None:
        super().__init__(Builder(name))
        self.types = types
        self.fuel = fuel
        self._returns: list[tuple[ir.Block, str | None]] = []
        self._results: list[str | None] = []
        self._entry = self.builder.block

    def compile(
        self, source: Source, special: dict[str, Operand], parameters: dict[str, Type], called: bool
    ) -> Function:
        self.source = source
        self.scope = Scope.of(source, "", dict(special))
        self.builder.function.locals.update(parameters)
        start = self.builder.new_block()
        start.reached = True
        self.builder.at(start)
        done = self.builder.new_block()
        result = self.hidden(i64)
        self._returns.append((done, result))
        if called:
            self._active.append(source.function)
            self.inlined_body(source, self.scope)
        else:
            self._body(source.tree.body)
        self.builder.do("set_local", Constant(0, i64), about=result)
        self.builder.jump(done)
        self.builder.at(done)
        self.builder.end(Return(self.builder.make(i64, "get_local", about=result)))
        self.builder.at(self._entry)
        if self._fuel_local is not None:
            self.builder.do("set_local", Constant(self.fuel, i64), about=self._fuel_local)
        self.builder.end(Jump(start.number))
        function = self.builder.function
        _drop_unreachable(function)
        ir.check(function)
        unassigned = ir.maybe_unassigned(function, parameters)
        if unassigned is not None:
            assert unassigned.result is not None
            raise self.reads[unassigned.result.number]
        return function

    # Statements

    def _body(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            self.stand_at(statement)
            method = getattr(self, f"_do_{type(statement).__name__}", None)
            if method is None:
                raise self.error(statement, *STATEMENTS.get(type(statement), ("this statement", "")))
            if len(self.builder.function.blocks) > LARGEST_FUNCTION:
                raise self.error(statement, "the handler is too large", "write less, or call fewer functions")
            method(statement)

    def _do_Pass(self, statement: ast.Pass) -> None:
        pass

    def _do_Expr(self, statement: ast.Expr) -> None:
        value = statement.value
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            return  # a docstring
        if not isinstance(value, ast.Call):
            raise self.error(statement, "a value that nobody uses", "")
        self.call(value, needed=False)

    def _do_Assign(self, statement: ast.Assign) -> None:
        if len(statement.targets) != 1:
            raise self.error(statement, "several targets", "use one assignment for each")
        self._assign(statement.targets[0], statement.value)

    def _do_AnnAssign(self, statement: ast.AnnAssign) -> None:
        if not isinstance(statement.target, ast.Name):
            raise self.error(statement, "only a local can be annotated")
        kind = self.annotation(statement.annotation)
        name = self.scope.prefix + statement.target.id
        known = self.types.setdefault(name, kind)
        if known is not kind:
            raise self.error(statement, f"`{statement.target.id}` has type {known.__name__} already")
        if statement.value is not None:
            self._assign(statement.target, statement.value)

    def annotation(self, node: ast.expr) -> Type:
        """The type that an annotation names."""
        found: Any = None
        if isinstance(node, ast.Name | ast.Attribute):
            operand = self.operand(node)
            found = operand.thing if isinstance(operand, Captured) else None
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return self.annotation(ast.copy_location(ast.Name(node.value, ast.Load()), node))
        if found is bool or found in INTEGERS:
            kind: Type = found
            return kind
        raise self.error(node, f"`{ast.unparse(node)}` is no type", "there are bool, u8 .. u64 and i8 .. i64")

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self._set(target, value, self.operand(value))
        elif isinstance(target, ast.Attribute):
            self._set_register(target, value)
        elif isinstance(target, ast.Subscript):
            self.set_item(target, value)
        else:
            raise self.error(target, f"`{ast.unparse(target)}` cannot be assigned to", "use one name")

    def _set(self, target: ast.Name, node: ast.expr, found: Operand) -> None:
        if isinstance(self.scope.special.get(target.id), Special | Captured):
            raise self.error(target, f"`{target.id}` is the handler's own parameter", "use another name")
        if isinstance(found, Pointer | TextAt):
            self._set_name(target, node, found)
            return
        if target.id in self.scope.special:
            raise self.error(target, f"`{target.id}` names a place in memory", "use another name")
        if isinstance(found, Captured | Special | Characters | Backtrace):
            raise self.error(node, f"`{ast.unparse(node)}` is not a number")
        name = self.scope.prefix + target.id
        self._set_local(name, node, found)

    def _set_local(self, name: str, node: ast.expr, found: Operand) -> None:
        """Give a local a value, and a type if it has none."""
        kind = self.types.get(name)
        if kind is not None:
            value = self.typed(node, kind, found)
        else:
            value = self.settled(node, found)
            if isinstance(found, Literal | Loose) and value.type is i64:
                self.loose_locals.add(name)
            else:
                self.types[name] = value.type
                if name in self.loose_locals:
                    raise Learned(frozenset(), value.type)
        self.builder.function.locals[name] = value.type
        self.builder.do("set_local", value, about=name)

    def _set_name(self, target: ast.Name, node: ast.expr, found: Pointer | TextAt) -> None:
        """A name for a pointer or for text stands for one kind of thing; its address may change."""
        if found.address is None:
            raise self.error(node, "comm() has no address to name", "use it where it is needed")
        kind = found.kind if isinstance(found, Pointer) else None
        limit = found.limit if isinstance(found, TextAt) else 0
        known = self.scope.special.get(target.id)
        if self.scope.prefix + target.id in self.builder.function.locals:
            raise self.error(target, f"`{target.id}` is a number already", "use another name")
        if known is None:
            known = self.scope.special[target.id] = Named(self.hidden(u64), kind, limit)
        if not isinstance(known, Named) or (known.kind, known.limit) != (kind, limit):
            raise self.error(target, f"`{target.id}` names something else already", "use another name")
        self.builder.do("set_local", found.address, about=known.local)

    def _local(self, node: ast.Name) -> Operand:
        name = self.scope.prefix + node.id
        kind = self.builder.function.locals.get(name)
        if kind is None:
            raise self.error(node, f"`{node.id}` has no value here yet", "assign it before")
        value = self.builder.make(kind, "get_local", about=name)
        self.note_read(node, value)
        return Loose(value, frozenset((name,))) if name in self.loose_locals else value

    def _set_register(self, target: ast.Attribute, value: ast.expr) -> None:
        owner = self.operand(target.value)
        if not isinstance(owner, Special) or owner.what != "regs":
            raise self.error(
                target, f"`{ast.unparse(target)}` cannot be assigned to", "registers can: regs.ax = ..."
            )
        register = register_of(target.attr)
        if register is None:
            raise self.error(target, f"there is no register `{target.attr}`")
        self.builder.do("set_register", self.typed(value, u64), about=register)

    def _do_AugAssign(self, statement: ast.AugAssign) -> None:
        target = statement.target
        if isinstance(target, ast.Subscript):
            self.change_item(target, statement.op, statement.value)
            return
        name = BINARY.get(type(statement.op))
        if name is None:
            raise self.error(statement, "there is no such operator", "use // or shifts")
        load = ast.copy_location(ast.parse(ast.unparse(target), mode="eval").body, target)
        ast.fix_missing_locations(load)
        for node in ast.walk(load):
            ast.copy_location(node, target)
        found = self.arithmetic(statement, name, load, statement.value)
        if isinstance(target, ast.Name):
            self._set(target, statement.value, found)
        else:
            register = register_of(target.attr)
            value = self.bare(found)
            if register is None or value.type is not u64:
                raise self.error(statement, f"`{ast.unparse(target)}` cannot be changed")
            self.builder.do("set_register", value, about=register)

    def _do_Delete(self, statement: ast.Delete) -> None:
        for target in statement.targets:
            self.delete_item(target)

    # Control

    def _do_If(self, statement: ast.If) -> None:
        then, otherwise, done = (self.builder.new_block() for _ in range(3))
        self.builder.branch(self.truth(statement.test), then, otherwise)
        for block, body in ((then, statement.body), (otherwise, statement.orelse)):
            self.builder.at(block)
            self._body(body)
            self.builder.jump(done)
        self.builder.at(done)

    def _do_Assert(self, statement: ast.Assert) -> None:
        message = statement.msg
        why = f"`{ast.unparse(statement.test)}` does not hold"
        if message is not None:
            if not isinstance(message, ast.Constant) or not isinstance(message.value, str):
                raise self.error(message, "a message that is computed", "write it as a constant")
            why = message.value
        self.builder.fault_if(self.negated(self.truth(statement.test)), why)

    def _do_Return(self, statement: ast.Return) -> None:
        done, result = self._returns[-1]
        if len(self._returns) == 1:
            self._return_of_handler(statement, done, result)
            return
        if statement.value is None or (
            isinstance(statement.value, ast.Constant) and statement.value.value is None
        ):
            self.returned(statement, None)
        else:
            self.returned(statement, self.value(statement.value))
        self.builder.jump(done)

    def inlined_body(self, source: Source, scope: Scope) -> Operand | None:
        """The statements of a function that is called, and what it returns."""
        done = self.builder.new_block()
        loops, self._loops = self._loops, []
        self._returns.append((done, None))
        self._results.append(None)
        self._body(source.tree.body)
        if self.builder.open and self._results[-1] is not None:
            raise source.error(
                source.tree, f"`{source.function.__name__}` returns nothing at its end", "return a value"
            )
        self.builder.jump(done)
        self.builder.at(done)
        self._returns.pop()
        self._loops = loops
        name = self._results.pop()
        if name is None:
            return None
        found = self.builder.make(self.builder.function.locals[name], "get_local", about=name)
        what = f"`{source.function.__name__}` returns a value on some ways, and none on others"
        self.reads[found.number] = source.error(source.tree, what, "return a value on each")
        return found  # of a settled type: it does not depend on what the caller makes of it

    def returned(self, statement: ast.Return, found: Operand | None) -> None:
        """A return of a function that was called."""
        name = self.scope.prefix + "return"
        if found is None:
            if self._results[-1] is not None:
                raise self.error(statement, "some returns have a value, this one has none")
            return
        assert statement.value is not None
        self._results[-1] = name
        self._set_local(name, statement.value, found)
        self.join(statement.value, self.builder.function.locals[name])

    def _return_of_handler(self, statement: ast.Return, done: ir.Block, result: str | None) -> None:
        node = statement.value
        if node is not None and not (isinstance(node, ast.Constant) and node.value is None):
            value = self.settled(node)
            one = self.truth(node, value)
            self.builder.do("set_local", self.convert(one, i64), about=result)
        else:
            self.builder.do("set_local", Constant(0, i64), about=result)
        self.builder.jump(done)


def check_function(source: Source) -> None:
    """Refuse what no function can have, before it is known with which types it is called."""
    for statement in source.tree.body:
        for node in ast.walk(statement):
            found = STATEMENTS.get(type(node)) if isinstance(node, ast.stmt) else None
            found = found or (EXPRESSIONS.get(type(node)) if isinstance(node, ast.expr) else None)
            if found is not None:
                raise source.error(node, *found)


def _drop_unreachable(function: Function) -> None:
    """Number the blocks that can be reached anew, in order."""
    by_number = {block.number: block for block in function.blocks}
    reached, waiting = set[int](), [0]
    while waiting:
        number = waiting.pop()
        if number not in reached:
            reached.add(number)
            waiting += by_number[number].successors
    kept = [block for block in function.blocks if block.number in reached]
    renumbered = {block.number: index for index, block in enumerate(kept)}
    for block in kept:
        block.number = renumbered[block.number]
        if isinstance(block.end, Jump):
            block.end = Jump(renumbered[block.end.target])
        elif isinstance(block.end, ir.Branch):
            end = block.end
            block.end = ir.Branch(end.condition, renumbered[end.then], renumbered[end.otherwise])
    function.blocks = kept


__all__ = ["FUEL", "Compilation", "HandlerError", "compile_function", "compile_handler"]
