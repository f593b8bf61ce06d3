"""From the intermediate representation to LLVM's, as text.

The handler is one function:

    i64 @handler(i64 di, si, dx, cx, r8, r9, ptr nest frame)

It keeps all registers but rax and r11 (preserve_mostcc). The integer arguments' registers are its parameters,
as they are at the probepoint. r10 points to the thread's counter block; or, if `slots` are used, to a frame:
the block's address, then a word for each other register, word of the stack or fact. It returns 0, 1 (the
handler returned true) or a fault as faults.py has it. Addresses are external symbols, filled in where the
code is placed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sidestep.compiler.exits import exits
from sidestep.compiler.faults import Site
from sidestep.compiler.ir import (
    COMPARISONS,
    Branch,
    Constant,
    Fault,
    Function,
    Jump,
    Operation,
    Return,
)
from sidestep.compiler.llvm_text import llvm_type
from sidestep.compiler.lower_events import Events
from sidestep.compiler.registers import ARGUMENTS
from sidestep.compiler.support import SUPPORT

FACTS = ("tid", "pid", "cpu")
WALKING = ("ip", "bp", "stack0", "entry")
FAULTING = ("read", "write", "same_text", "stack")


@dataclass(frozen=True, slots=True)
class Lowered:
    """LLVM text with what its frame and symbols stand for.

    `slots`: names behind the counter block, one word each; `written`: those that the handler changes;
    `arguments`: the arguments' registers that it reads where they are.
    `symbols` maps the names of externals to what they are.
    """

    text: str
    slots: tuple[str, ...]
    written: tuple[str, ...]
    arguments: tuple[str, ...]
    symbols: dict[str, object]
    returns: bool  # whether it may return 1
    faults: bool  # whether it may return 2
    exits: frozenset[int] | None  # exits.exits
    sites: tuple[Site, ...]  # where its run can end early, by number


def lower(function: Function) -> Lowered:
    return _Lowering(function).finish()


class _Lowering(Events):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function
        self.written = tuple(sorted({op.about for op in function.operations() if op.name == "set_register"}))
        used = dict.fromkeys(self._inputs())
        self.slots = tuple(dict.fromkeys([*used, *self.written]))

    def _inputs(self) -> Iterator[str]:
        for operation in self.function.operations():
            if operation.name == "register" and operation.about not in ARGUMENTS:
                yield operation.about
            elif operation.name == "stack":
                yield "sp" if operation.about else "stack0"
            elif operation.name in FACTS:
                yield operation.name
            elif operation.name == "probe_address":
                yield "ip"
            elif operation.name == "walk":
                yield from WALKING

    def finish(self) -> Lowered:
        self.head()
        allocated = len(self.lines) - 1
        for block in self.function.blocks:
            self.lines.append(f"b{block.number}:")
            for operation in block.operations:
                self.operation(operation)
            self.end(block.end)
        self.lines.append("}")
        self.lines[allocated:allocated] = self.allocations
        declared = [f"@{name} = external global i8" for name in self.symbols]
        fixed = [
            f"@{name} = external global i8" for name in ("scratch_block", "shared_block", "process_page")
        ]
        text = "\n".join([*fixed, *declared, SUPPORT, *self.lines]) + "\n"
        faults = any(isinstance(block.end, Fault) for block in self.function.blocks) or any(
            operation.name in FAULTING for operation in self.function.operations()
        )
        return Lowered(
            text,
            self.slots,
            self.written,
            self._arguments(),
            self.symbols,
            self._may_return_true(),
            faults,
            exits(self.function),
            tuple(self.sites),
        )

    def _arguments(self) -> tuple[str, ...]:
        read = {each.about for each in self.function.operations() if each.name == "register"}
        return tuple(name for name in ARGUMENTS if name in read)

    def _may_return_true(self) -> bool:
        operations = list(self.function.operations())
        returned = {block.end.value for block in self.function.blocks if isinstance(block.end, Return)}
        results = {each.about for each in operations if each.result in returned}
        stored = (each for each in operations if each.name == "set_local" and each.about in results)
        return any(not isinstance(each.arguments[0], Constant) or each.arguments[0].value for each in stored)

    def head(self) -> None:
        parameters = ", ".join(f"i64 %{name}" for name in ARGUMENTS)
        # Tables of jumps or of results would be data beside the code.
        attributes = 'nounwind noredzone noimplicitfloat "no-jump-tables"="true" "no-builtins"'
        self.lines.append(
            f"define preserve_mostcc i64 @handler({parameters}, ptr nest %frame) {attributes} {{"
        )
        self.lines.append("entry:")
        load = "load ptr, ptr %frame" if self.slots else "getelementptr i8, ptr %frame, i64 0"
        self.lines.append(f"  %block = {load}")
        for name, kind in self.function.locals.items():
            self.lines.append(f'  %"local {name}" = alloca {llvm_type(kind)}')
        for name in dict.fromkeys([*ARGUMENTS, *self.slots]):
            if name in self.written or name in ARGUMENTS:
                self.lines.append(f'  %"register {name}" = alloca i64')
        for name in ARGUMENTS:
            self.lines.append(f'  store i64 %{name}, ptr %"register {name}"')
        for name in self.slots:
            if name not in ARGUMENTS:
                value = self.load_slot(name)
                if name in self.written:
                    self.lines.append(f'  store i64 {value}, ptr %"register {name}"')
        self.lines.append("  br label %b0")

    def load_slot(self, name: str) -> str:
        offset = 8 * (1 + self.slots.index(name))
        self.lines.append(f'  %"at {name}" = getelementptr i8, ptr %frame, i64 {offset}')
        self.lines.append(f'  %"in {name}" = load i64, ptr %"at {name}"')
        return f'%"in {name}"'

    # Values

    def end(self, end: object) -> None:
        match end:
            case Jump(target=target):
                self.lines.append(f"  br label %b{target}")
            case Branch(condition=condition, then=then, otherwise=otherwise):
                self.lines.append(f"  br i1 {self.value(condition)}, label %b{then}, label %b{otherwise}")
            case Return(value=value):
                self.write_back()
                self.lines.append(f"  ret i64 {self.value(value)}")
            case Fault(why=why, where=where):
                self.where = where
                self.fault(why)
            case _:
                raise AssertionError(end)

    def write_back(self) -> None:
        for name in self.written:
            offset = 8 * (1 + self.slots.index(name))
            value = self.make(f'load i64, ptr %"register {name}"')
            place = self.make(f"getelementptr i8, ptr %frame, i64 {offset}")
            self.lines.append(f"  store i64 {value}, ptr {place}")

    def operation(self, operation: Operation) -> None:
        name, self.where = operation.name, operation.where
        values = [self.value(argument) for argument in operation.arguments]
        if name in COMPARISONS:
            result = self.compare(name, operation.arguments[0].type, values)
        elif name in ("add", "sub", "mul", "and", "or", "xor", "div", "mod", "shl", "shr"):
            assert operation.result is not None
            result = self.arithmetic(name, operation.result.type, values)
        else:
            found = getattr(self, f"do_{name}")(operation, values)
            result = found or ""
        if operation.result is not None:
            self.name(result, operation.result)

    # Operations

    def do_get_local(self, operation: Operation, values: list[str]) -> str:
        kind = llvm_type(self.function.locals[operation.about])
        return self.make(f'load {kind}, ptr %"local {operation.about}"')

    def do_set_local(self, operation: Operation, values: list[str]) -> None:
        kind = llvm_type(self.function.locals[operation.about])
        self.lines.append(f'  store {kind} {values[0]}, ptr %"local {operation.about}"')

    def do_register(self, operation: Operation, values: list[str]) -> str:
        name = operation.about
        if name in self.written or name in ARGUMENTS:
            return self.make(f'load i64, ptr %"register {name}"')
        return f'%"in {name}"'

    def do_probe_address(self, operation: Operation, values: list[str]) -> str:
        return self.input("ip")

    def do_set_register(self, operation: Operation, values: list[str]) -> None:
        self.lines.append(f'  store i64 {values[0]}, ptr %"register {operation.about}"')

    def do_stack(self, operation: Operation, values: list[str]) -> str:
        """The word at the stack pointer is there; others may lie behind the end of a stack."""
        if not operation.about:
            return self.input("stack0")
        return self.read_word(
            self.make(f"add i64 {self.input('sp')}, {8 * operation.about}"),
            8,
            f"stack({operation.about}) cannot be read",
        )

    def _fact(self, operation: Operation, values: list[str]) -> str:
        return self.make(f'trunc i64 %"in {operation.name}" to i32')

    do_tid = do_pid = do_cpu = _fact
