"""The registers of `regs`, by the kernel's pt_regs names, and the ABI's arguments."""

from __future__ import annotations

from typing import Any, Final

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
    """`regs` in plain Python: the registers as keyword arguments, words of the stack as a tuple."""

    def __init__(self, stack: tuple[int, ...] = (), **values: int) -> None:
        self._words = stack
        self._values = dict.fromkeys(REGISTERS, 0)
        for name, value in values.items():
            setattr(self, name, value)

    @property
    def return_address(self) -> u64:
        return self.stack(0)

    def __getattr__(self, name: str) -> u64:
        register = register_of(name)
        if register is None:
            raise AttributeError(f"there is no register {name}")
        return u64(self._values[register])

    def __setattr__(self, name: str, value: Any) -> None:
        register = register_of(name)
        if register is not None:
            self._values[register] = int(u64(value))
        elif name.startswith("_"):
            super().__setattr__(name, value)
        else:
            raise AttributeError(f"there is no register {name}")

    def arg(self, number: int) -> u64:
        """The integer argument, from 0, at a function's entry."""
        if number < len(ARGUMENTS):
            return u64(self._values[ARGUMENTS[number]])
        return self.stack(number - len(ARGUMENTS) + 1)

    def stack(self, number: int) -> u64:
        """The word on the stack."""
        return u64(self._words[number])
