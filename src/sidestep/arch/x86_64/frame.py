"""What a detour buffer keeps on the target's stack, and where it finds the program's registers.

At a probepoint the stack pointer is moved over the red zone, registers that the code clobbers are pushed, and
from then on the frame knows how far the stack pointer is below the program's own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, TypeAlias

from sidestep.arch.x86_64.shapes import (
    LAHF,
    POPF,
    PUSHF,
    RESTORE_OVERFLOW,
    SAHF,
    SETO_AL,
    Memory,
    at,
    lea,
    pop,
    push,
)
from sidestep.arch.x86_64.writer import Assembler

RED_ZONE: Final = 128
"""Bytes below the stack pointer that belong to the program (System V ABI, 3.2.2)."""


Label: TypeAlias = tuple[str, int]


class Emission:
    """A buffer's assembler, with labels that are always new and code that is put out of the way."""

    def __init__(self, assembler: Assembler) -> None:
        self.assembler = assembler
        self._labels = 0
        self._later: list[Callable[[], None]] = []

    def new_label(self) -> Label:
        self._labels += 1
        return ("detour", self._labels)

    def later(self, emit: Callable[[], None]) -> None:
        """Has `emit` called at the end: for what a hit seldom needs, so that the rest is short."""
        self._later.append(emit)

    def finish_later(self) -> None:
        while self._later:
            later, self._later = self._later, []
            for emit in later:
                emit()


class Frame:
    """The stack of one probepoint's handlers. All changes of the stack pointer go through it."""

    def __init__(self, assembler: Assembler) -> None:
        self._assembler = assembler
        self.depth = 0  # bytes from the stack pointer up to the program's
        self._saved: dict[str, int] = {}
        self._flags: int | None = None
        self._whole_flags = False

    def enter(self, registers: Sequence[str], *, flags: bool, whole_flags: bool = False) -> None:
        """Saves `registers`, and the flags; clobbers rax for them unless they are saved whole.

        `flags` saves the arithmetic ones; `whole_flags` all of them, which costs five times as much.
        """
        self._move(-RED_ZONE)
        for register in registers:
            self.push(register)
            self._saved[register] = self.depth
        if whole_flags:
            self._assembler.raw(PUSHF)
            self.depth += 8
        elif flags:
            self._assembler.raw(LAHF + SETO_AL)
            self.push("rax")
        if whole_flags or flags:
            self._flags, self._whole_flags = self.depth, whole_flags

    def leave(self) -> None:
        """Restores everything; the stack pointer must be where `enter` left it."""
        if self._flags is not None:
            if self._whole_flags:
                self._assembler.raw(POPF)
                self.depth -= 8
            else:
                self.pop("rax")
                self._assembler.raw(RESTORE_OVERFLOW + SAHF)
        for register in reversed(self._saved):
            self.pop(register)
        self._move(RED_ZONE)
        assert self.depth == 0

    def push(self, register: str) -> None:
        self._assembler.emit(push(register))
        self.depth += 8

    def pop(self, register: str) -> None:
        self._assembler.emit(pop(register))
        self.depth -= 8

    def reserve(self, size: int) -> None:
        """Takes `size` bytes of stack."""
        self._move(-size)

    def release(self, size: int) -> None:
        self._move(size)

    def program_stack(self, offset: int) -> Memory:
        """The memory at the program's stack pointer + `offset`."""
        return at("rsp", self.depth + offset)

    def saved(self, register: str) -> Memory | None:
        """Where a register's value was put; None: it is still in the register."""
        depth = self._saved.get(register)
        return None if depth is None else at("rsp", self.depth - depth)

    @property
    def saved_flags(self) -> Memory:
        """Where `whole_flags` put them."""
        assert self._flags is not None
        assert self._whole_flags
        return at("rsp", self.depth - self._flags)

    def _move(self, size: int) -> None:
        """Moves the stack pointer without touching the flags."""
        if size:
            self._assembler.emit(lea("rsp", at("rsp", size)))
            self.depth -= size


def clobbered(wanted: Sequence[str], live: Collection[str], fetched: Collection[str] = ()) -> list[str]:
    """Those of `wanted` whose values are needed: by the program afterwards, or by a fetch argument."""
    return [register for register in wanted if register in live or register in fetched]
