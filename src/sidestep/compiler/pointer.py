"""Pointers with a stride: what a handler reads memory with."""

from __future__ import annotations

from sidestep.compiler import machine
from sidestep.compiler.integers import Integer


class pointer:
    """`pointer(u32, address)[n]` is the n-th u32 from the address on. A call of a type reads the first one:
    `u32(pointer(...))`."""

    def __init__(self, kind: type[Integer], address: int) -> None:
        self.kind, self.address = kind, address

    def __getitem__(self, index: int) -> Integer:
        address = int(self.address) + int(index) * (self.kind.bits // 8)
        return self.kind(machine.current().read(address & (1 << 64) - 1, self.kind))

    def __int__(self) -> int:
        return int(self[0])
