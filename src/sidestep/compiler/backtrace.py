"""Backtraces in events: `stack(n)` is the type of a field, and in a handler the stack as it is."""

from __future__ import annotations

from dataclasses import dataclass

from sidestep.compiler import machine
from sidestep.compiler.machine import LONGEST_WALK


@dataclass(frozen=True, slots=True)
class StackType:
    """At most `depth` addresses: the probepoint, at a function's entry its caller, then what the frame
    pointers lead to."""

    depth: int

    def read(self) -> list[int]:
        """The addresses, in plain Python."""
        return [*machine.current().backtrace[: self.depth]]

    def __str__(self) -> str:
        return f"stack({self.depth})"


def stack(depth: int) -> StackType:
    """The type of a field, and the value for it. Raises ValueError for a depth that is not to be had."""
    if not 0 < depth <= LONGEST_WALK:
        raise ValueError(f"a backtrace has 1 to {LONGEST_WALK} addresses, not {depth}")
    return StackType(depth)
