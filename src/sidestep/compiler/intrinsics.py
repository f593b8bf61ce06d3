"""What native handlers can call besides integer types, maps and other handlers.

Each has a Python body, which is what it means: it asks the current machine (`machine.py`), as the interpreter
does. The trusted ones reach Sidestep's own memory and are for the code of maps only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sidestep.compiler import machine
from sidestep.compiler.integers import Integer, i8, i16, i32, i64, u8, u16, u32, u64
from sidestep.compiler.ir import Type

R = TypeVar("R")
Kind = TypeVar("Kind", bound=Integer)


@dataclass(frozen=True, slots=True)
class Intrinsic(Generic[R]):
    """A function that is one operation. `result` None: it gives nothing."""

    label: str
    parameters: tuple[Type, ...]
    result: type[R] | None
    meaning: Callable[..., Any]
    about: Any = None

    def __call__(self, *arguments: int) -> R:
        values = [int(kind(argument)) for kind, argument in zip(self.parameters, arguments, strict=True)]
        value = self.meaning(*values) if self.about is None else self.meaning(self.about, *values)
        return None if self.result is None else self.result(value)  # type: ignore[return-value, call-arg]


def _reader(kind: type[Kind]) -> Intrinsic[Kind]:
    return Intrinsic("read", (u64,), kind, lambda kind, address: machine.current().read(address, kind), kind)


def _writer(kind: type[Integer]) -> Intrinsic[None]:
    def write(kind: type[Integer], address: int, value: int) -> None:
        machine.current().write(address, kind, value)

    return Intrinsic("write", (u64, kind), None, write, kind)


read_u8 = _reader(u8)
read_u16 = _reader(u16)
read_u32 = _reader(u32)
read_u64 = _reader(u64)
read_i8 = _reader(i8)
read_i16 = _reader(i16)
read_i32 = _reader(i32)
read_i64 = _reader(i64)

write_u8 = _writer(u8)
write_u16 = _writer(u16)
write_u32 = _writer(u32)
write_u64 = _writer(u64)
write_i8 = _writer(i8)
write_i16 = _writer(i16)
write_i32 = _writer(i32)
write_i64 = _writer(i64)

now = Intrinsic("now", (), u64, lambda: machine.current().now())
tid = Intrinsic("tid", (), u32, lambda: machine.current().tid())
pid = Intrinsic("pid", (), u32, lambda: machine.current().pid())
cpu = Intrinsic("cpu", (), u32, lambda: machine.current().cpu())
random = Intrinsic("random", (), u64, lambda: machine.current().random())

# For the code of maps.
cell_add: Intrinsic[None] = Intrinsic(
    "cell_add", (u64, u64), None, lambda cell, n: machine.current().cell_add(cell, n)
)
cell_max: Intrinsic[None] = Intrinsic(
    "cell_max", (u64, u64), None, lambda cell, n: machine.current().cell_max(cell, n)
)
load = Intrinsic("load", (u64,), u64, lambda address: machine.current().load(address))
store: Intrinsic[None] = Intrinsic(
    "store", (u64, u64), None, lambda address, n: machine.current().store(address, n)
)
add: Intrinsic[None] = Intrinsic(
    "add_to", (u64, u64), None, lambda address, n: machine.current().add_to(address, n)
)
exchange_if = Intrinsic(
    "exchange_if",
    (u64, u64, u64),
    u64,
    lambda address, old, new: machine.current().exchange_if(address, old, new),
)
exchange_pair = Intrinsic(
    "exchange_pair",
    (u64, u64, u64, u64, u64),
    bool,
    lambda address, low, high, new_low, new_high: machine.current().exchange_pair(
        address, low, high, new_low, new_high
    ),
)
"""Set two words, at a multiple of 16, if they are `low` and `high`: whether that was so."""
walk = Intrinsic("walk", (), u64, lambda: machine.current().walk())
"""Look at the stack by frame pointers: the address of a free word, and behind it of LONGEST_WALK addresses,
0 behind the last. They are there until the next walk."""
bit_count = Intrinsic("bit_count", (u64,), u64, lambda value: int(value).bit_count())
"""How many bits are set."""
bit_length = Intrinsic("bit_length", (u64,), u64, lambda value: int(value).bit_length())
"""The number of bits that a value needs: 0 for 0, 64 at most."""
