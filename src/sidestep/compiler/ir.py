"""The intermediate representation: blocks of operations on typed values, with named locals.

    function on_malloc
      locals size: u64
    b0:
      %0: u64 = register di
      set_local size %0
      %1: bool = gt %0 1048576
      branch %1 b1 b2

A temporary has one definition and is used in its block or later ones that it dominates. What differs between
Python and machines (division by zero, negative shifts, ends of ranges) is already tested for in branches: a
`div` or `mod` rounds down and has a divisor other than 0, the count of `shl` and `shr` is not negative.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, NamedTuple, TypeAlias

from sidestep.compiler.integers import EXACT, Integer

Type: TypeAlias = type[Integer] | type[bool]

ARITHMETIC = tuple(EXACT)
EFFECTS = frozenset(
    {"cell_add", "cell_max", "add_to", "exchange_if", "exchange_pair", "set_register", "write", "emit"}
)
"""Operations that others can see; `store` is one where it is to a map."""
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


@dataclass(frozen=True, slots=True)
class Temporary:
    """A value computed at run time."""

    number: int
    type: Type

    def __str__(self) -> str:
        return f"%{self.number}"


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that is known."""

    value: int
    type: Type

    def __str__(self) -> str:
        return str(self.value)


Value: TypeAlias = Temporary | Constant


@dataclass(frozen=True, slots=True)
class Operation:
    """`name` is one of those that interpreter.py lists; `about` says what it is done with: the name of a
    local or register, a map, an event."""

    result: Temporary | None
    name: str
    arguments: tuple[Value, ...]
    about: Any
    where: Where

    def __str__(self) -> str:
        about = "" if self.about is None else f" {getattr(self.about, 'label', self.about)}"
        text = f"{self.name}{about}{''.join(f' {argument}' for argument in self.arguments)}"
        return text if self.result is None else f"{self.result}: {self.result.type.__name__} = {text}"


class Where(NamedTuple):
    """A line of a handler's source."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{PurePath(self.file).name}:{self.line}"


@dataclass(frozen=True, slots=True)
class Space:
    """Words on the handler's own stack; those with one number are the same."""

    number: int
    words: int

    @property
    def label(self) -> str:
        return f"#{self.number}[{self.words}]"


@dataclass(frozen=True, slots=True)
class Jump:
    target: int

    def __str__(self) -> str:
        return f"jump b{self.target}"


@dataclass(frozen=True, slots=True)
class Branch:
    condition: Value
    then: int
    otherwise: int

    def __str__(self) -> str:
        return f"branch {self.condition} b{self.then} b{self.otherwise}"


@dataclass(frozen=True, slots=True)
class Return:
    value: Value

    def __str__(self) -> str:
        return f"return {self.value}"


@dataclass(frozen=True, slots=True)
class Fault:
    """The handler ends here, and the fault is counted."""

    why: str
    where: Where

    def __str__(self) -> str:
        return f"fault {self.why!r}"


End: TypeAlias = Jump | Branch | Return | Fault


@dataclass(slots=True)
class Block:
    number: int
    operations: list[Operation] = field(default_factory=list)
    end: End | None = None
    reached: bool = False  # something leads here

    @property
    def successors(self) -> tuple[int, ...]:
        if isinstance(self.end, Jump):
            return (self.end.target,)
        if isinstance(self.end, Branch):
            return (self.end.then, self.end.otherwise)
        return ()


@dataclass(slots=True)
class Function:
    """A handler with everything that it calls. Block 0 comes first; `locals` have their types."""

    name: str
    locals: dict[str, Type] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)

    def operations(self) -> Iterator[Operation]:
        for block in self.blocks:
            yield from block.operations

    def __str__(self) -> str:
        lines = [f"function {self.name}"]
        if self.locals:
            types = ", ".join(f"{name}: {kind.__name__}" for name, kind in self.locals.items())
            lines.append(f"  locals {types}")
        for block in self.blocks:
            lines.append(f"b{block.number}:")
            lines += [f"  {operation}" for operation in block.operations]
            lines.append(f"  {block.end}")
        return "\n".join(lines)


class Builder:
    """Appends to the function's current block."""

    def __init__(self, name: str) -> None:
        self.function = Function(name)
        self.where = Where("", 0)
        self.effects = 0  # operations that others can see
        self._temporaries = 0
        self.block = self.new_block()
        self.block.reached = True

    def new_block(self) -> Block:
        block = Block(len(self.function.blocks))
        self.function.blocks.append(block)
        return block

    def at(self, block: Block) -> None:
        self.block = block

    @property
    def open(self) -> bool:
        """Whether what is appended can be reached."""
        return self.block.end is None and self.block.reached

    def do(self, name: str, *arguments: Value, about: Any = None) -> None:
        if self.open:
            self._append(Operation(None, name, arguments, about, self.where))

    def make(self, kind: Type, name: str, *arguments: Value, about: Any = None) -> Temporary:
        result = Temporary(self._temporaries, kind)
        self._temporaries += 1
        if self.open:
            self._append(Operation(result, name, arguments, about, self.where))
        return result

    def _append(self, operation: Operation) -> None:
        self.block.operations.append(operation)
        self.effects += operation.name in EFFECTS

    def end(self, end: End) -> None:
        if self.open:
            self.block.end = end
            for number in self.block.successors:
                self.function.blocks[number].reached = True

    def jump(self, target: Block) -> None:
        self.end(Jump(target.number))

    def branch(self, condition: Value, then: Block, otherwise: Block) -> None:
        if isinstance(condition, Constant):
            self.jump(then if condition.value else otherwise)
        else:
            self.end(Branch(condition, then.number, otherwise.number))

    def fault_if(self, condition: Value, why: str) -> None:
        """End the handler when the condition holds."""
        bad, good = self.new_block(), self.new_block()
        self.branch(condition, bad, good)
        self.at(bad)
        self.end(Fault(why, self.where))
        self.at(good)


def check(function: Function) -> None:
    """The rules of the representation; an AssertionError is an error of the compiler."""
    numbers = {block.number for block in function.blocks}
    assert [block.number for block in function.blocks] == sorted(numbers), "blocks are numbered in order"
    defined: set[int] = set()
    for block in function.blocks:
        assert block.end is not None, f"b{block.number} has no end"
        assert numbers.issuperset(block.successors), f"b{block.number} goes nowhere"
        for operation in block.operations:
            if operation.result is not None:
                assert operation.result.number not in defined, f"{operation.result} is defined twice"
                defined.add(operation.result.number)
            _check_types(function, operation)


def _check_types(function: Function, operation: Operation) -> None:
    types = [argument.type for argument in operation.arguments]
    where = f"{operation}"
    if operation.name in ARITHMETIC:
        assert operation.result is not None, where
        assert types == [operation.result.type] * 2, where
    elif operation.name in COMPARISONS:
        assert operation.result is not None, where
        assert operation.result.type is bool, where
        assert types[0] is types[1], where
    elif operation.name == "set_local":
        assert types == [function.locals[operation.about]], where
    elif operation.name == "get_local":
        assert operation.result is not None, where
        assert operation.result.type is function.locals[operation.about], where


def maybe_unassigned(function: Function, parameters: Iterable[str]) -> Operation | None:
    """The first reading of a local that some path reaches without having assigned it."""
    everything = frozenset(function.locals)
    before = [everything] * len(function.blocks)
    before[0] = frozenset(parameters)
    changed = True
    while changed:
        changed = False
        for block in function.blocks:
            stored = (each.about for each in block.operations if each.name == "set_local")
            behind = before[block.number].union(stored)
            for successor in block.successors:
                if not before[successor] <= behind:
                    before[successor] &= behind
                    changed = True
    for block in function.blocks:
        here = set(before[block.number])
        for operation in block.operations:
            if operation.name == "get_local" and operation.about not in here:
                return operation
            if operation.name == "set_local":
                here.add(operation.about)
    return None
