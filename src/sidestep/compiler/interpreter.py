"""Runs the intermediate representation on a simulated machine: what machine code must agree with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sidestep.compiler import machine
from sidestep.compiler.backtrace import StackType
from sidestep.compiler.event import Emission, Event
from sidestep.compiler.integers import EXACT, Integer, shift_left, wrap
from sidestep.compiler.ir import Branch, Constant, Fault, Function, Jump, Operation, Return, Type, Value
from sidestep.compiler.machine import HandlerFault
from sidestep.compiler.text import StringType, Text

ARITHMETIC = EXACT | {"shl": shift_left}
COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
BITS = ("bit_count", "bit_length")
PLAIN = [
    "now",
    "tid",
    "pid",
    "cpu",
    "random",
    "cell_add",
    "cell_max",
    "load",
    "store",
    "add_to",
    "exchange_if",
    "exchange_pair",
    "walk",
]
"""Operations that the machine has under the same name."""


@dataclass(slots=True)
class Frame:
    """Registers at a probepoint, by name; words on the stack, by number."""

    registers: dict[str, int] = field(default_factory=dict)
    stack: dict[int, int] = field(default_factory=dict)


def run(function: Function, frame: Frame) -> int:
    """Run a handler on the current machine: what it returns, 0 or 1. Raises HandlerFault."""
    return _Run(function, frame).run()


def cut(kind: Type, value: int) -> int:
    """A number as its type holds it."""
    return wrap(kind, value) if issubclass(kind, Integer) else int(bool(value))


class _Run:
    def __init__(self, function: Function, frame: Frame) -> None:
        self.function, self.frame = function, frame
        self.temporaries: dict[int, int] = {}
        self.locals: dict[str, int] = {}
        self.machine = machine.current()
        self.address = frame.registers.get("ip", 0)

    def run(self) -> int:
        number = 0
        while True:
            block = self.function.blocks[number]
            for operation in block.operations:
                result = self.step(operation)
                if operation.result is not None:
                    self.temporaries[operation.result.number] = cut(operation.result.type, result)
            end = block.end
            if isinstance(end, Return):
                return self.get(end.value)
            if isinstance(end, Fault):
                raise HandlerFault(end.why)
            assert isinstance(end, Jump | Branch)
            number = end.target if isinstance(end, Jump) else self._chosen(end)

    def _chosen(self, end: Branch) -> int:
        return end.then if self.get(end.condition) else end.otherwise

    def get(self, value: Value) -> int:
        return value.value if isinstance(value, Constant) else self.temporaries[value.number]

    def step(self, operation: Operation) -> Any:
        name, about = operation.name, operation.about
        values = [self.get(argument) for argument in operation.arguments]
        if name in ARITHMETIC:
            return ARITHMETIC[name](values[0], values[1])
        if name in COMPARISONS:
            return COMPARISONS[name](values[0], values[1])
        if name in BITS:
            return getattr(values[0], name)()
        if name in PLAIN:
            return getattr(self.machine, name)(*values)
        match name:
            case "probe_address":
                return self.address
            case "space":
                return self.machine.keep(about.number, (0,) * about.words)
            case "read_text":
                return self.machine.put_text(values[0], values[1] if len(values) > 1 else None, about)
            case "get_local":
                return self.locals[about]
            case "set_local":
                self.locals[about] = values[0]
            case "convert":
                return values[0]
            case "register":
                return self.frame.registers.get(about, 0)
            case "set_register":
                self.frame.registers[about] = values[0]
            case "stack":
                return self.frame.stack.get(about, 0)
            case "read":
                return self.machine.read(values[0], about)
            case "write":
                self.machine.write(values[0], about, values[1])
            case "symbol":
                return about.address
            case "emit":
                self.machine.events.append(_event(about, values))
            case "same_text":
                return self.machine.same_text(values[0] if values else None, about)
            case _:
                raise AssertionError(f"no operation {name}")
        return None


def _event(emission: Emission, values: list[int]) -> Event:
    left = iter(values)
    fields: dict[str, Any] = {}
    limits = iter(emission.limits)
    for name, kind in emission.event.fields.items():
        if isinstance(kind, StackType):
            fields[name] = StackType(emission.depth)
        elif isinstance(kind, StringType):
            limit = next(limits)
            fields[name] = Text(next(left), limit) if limit else Text(None, kind.limit)
        else:
            next(limits)
            fields[name] = kind(next(left))
    return emission.event(**fields)
