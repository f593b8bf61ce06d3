"""The registers of `regs`, by the kernel's pt_regs names, and the ABI's arguments."""

from __future__ import annotations

from typing import Final

from sidestep.compiler.integers import u64

REGISTERS: Final = (
    "ip",
    "sp",
    "flags",
    "ax",
    "bx",
    "cx",
    "dx",
    "si",
    "di",
    "bp",
    *(f"r{n}" for n in range(8, 16)),
)
ARGUMENTS: Final = ("di", "si", "dx", "cx", "r8", "r9")
"""The registers of the first integer arguments (System V ABI, 3.2.3)."""


def register_of(attribute: str) -> str | None:
    """The register that an attribute of `regs` names."""
    if attribute == "return_value":
        return "ax"
    return attribute if attribute in REGISTERS else None


class Registers:
    """`regs` in plain Python: the registers as keyword arguments, words of the stack as a list."""

    def __init__(self, stack: tuple[int, ...] = (), **values: int) -> None:
        object.__setattr__(self, "words", stack)
        object.__setattr__(self, "values", dict.fromkeys(REGISTERS, 0))
        for name, value in values.items():
            setattr(self, name, value)

    def __getattr__(self, name: str) -> u64:
        if name == "return_address":
            return self.stack(0)
        register = register_of(name)
        if register is None:
            raise AttributeError(f"there is no register {name}")
        return u64(self.values[register])

    def __setattr__(self, name: str, value: int) -> None:
        register = register_of(name)
        if register is None:
            raise AttributeError(f"there is no register {name}")
        self.values[register] = u64(value)

    def arg(self, number: int) -> u64:
        """The integer argument, from 0, at a function's entry."""
        if number < len(ARGUMENTS):
            return u64(self.values[ARGUMENTS[number]])
        return self.stack(number - len(ARGUMENTS) + 1)

    def stack(self, number: int) -> u64:
        """The word on the stack."""
        return u64(self.words[number])
