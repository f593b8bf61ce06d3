"""What native handlers can call besides integer types, maps and other handlers.

Each has a Python body, which is what it means: it asks the current machine (`machine.py`), as the interpreter
does. The trusted ones reach Sidestep's own memory and are for the code of maps only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sidestep.compiler import machine
from sidestep.compiler.integers import INTEGERS, Integer, u32, u64
from sidestep.compiler.ir import Type


@dataclass(frozen=True, slots=True)
class Intrinsic:
    """A function that is one operation. `result` None: it gives nothing."""

    label: str
    parameters: tuple[Type, ...]
    result: Type | None
    meaning: Callable[..., Any]
    about: Any = None

    def __call__(self, *arguments: Any) -> Any:
        values = [int(kind(argument)) for kind, argument in zip(self.parameters, arguments, strict=True)]
        value = self.meaning(*values) if self.about is None else self.meaning(self.about, *values)
        return None if self.result is None else self.result(value)


def _reader(kind: type[Integer]) -> Intrinsic:
    return Intrinsic("read", (u64,), kind, lambda kind, address: machine.current().read(address, kind), kind)


def _writer(kind: type[Integer]) -> Intrinsic:
    def write(kind: type[Integer], address: int, value: int) -> None:
        machine.current().write(address, kind, value)

    return Intrinsic("write", (u64, kind), None, write, kind)


READERS = {f"read_{kind.__name__}": _reader(kind) for kind in INTEGERS}
WRITERS = {f"write_{kind.__name__}": _writer(kind) for kind in INTEGERS}

now = Intrinsic("now", (), u64, lambda: machine.current().now())
tid = Intrinsic("tid", (), u32, lambda: machine.current().tid())
pid = Intrinsic("pid", (), u32, lambda: machine.current().pid())
cpu = Intrinsic("cpu", (), u32, lambda: machine.current().cpu())
random = Intrinsic("random", (), u64, lambda: machine.current().random())

# For the code of maps.
cell_add = Intrinsic("cell_add", (u64, u64), None, lambda cell, n: machine.current().cell_add(cell, n))
cell_max = Intrinsic("cell_max", (u64, u64), None, lambda cell, n: machine.current().cell_max(cell, n))
load = Intrinsic("load", (u64,), u64, lambda address: machine.current().load(address))
store = Intrinsic("store", (u64, u64), None, lambda address, n: machine.current().store(address, n))
add = Intrinsic("add_to", (u64, u64), None, lambda address, n: machine.current().add_to(address, n))
exchange_if = Intrinsic(
    "exchange_if",
    (u64, u64, u64),
    u64,
    lambda address, old, new: machine.current().exchange_if(address, old, new),
)
bit_length = Intrinsic("bit_length", (u64,), u64, lambda value: int(value).bit_length())
"""The number of bits that a value needs: 0 for 0, 64 at most."""
