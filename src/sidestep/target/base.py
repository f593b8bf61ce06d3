"""What an engine offers to the code that knows what a probe means: text changed in whole batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sidestep.address import Range
from sidestep.errors import Refusal

JUMP_SIZE = 5


@dataclass(frozen=True, slots=True)
class Boundary:
    """An instruction and its copy: at `copy` the machine's state is that of the program at `original`.

    The copy lies behind the handlers of the instruction, so that a thread moved there is not counted again.
    """

    original: int
    copy: int


@dataclass(frozen=True, slots=True)
class Buffer:
    """A detour buffer, ready to be entered at `address`."""

    address: int
    code: bytes
    boundaries: tuple[Boundary, ...]

    @property
    def span(self) -> Range:
        return Range(self.address, self.address + len(self.code))

    def copy_of(self, original: int) -> int | None:
        return next((b.copy for b in self.boundaries if b.original == original), None)

    def original_of(self, copy: int) -> int | None:
        return next((b.original for b in self.boundaries if b.copy == copy), None)


@dataclass(frozen=True, slots=True)
class Detour:
    """A jump in the text and the buffer that it leads to."""

    dcr: Range  # the detoured code region: whole instructions, the jump is at its start
    original: bytes  # the region's bytes without any probe
    buffer: Buffer
    table_index: int  # its record in the table that `sidestep list` and `clean` read
    name: str

    @property
    def site(self) -> int:
        return self.dcr.start

    @property
    def jump(self) -> bytes:
        displacement = self.buffer.address - (self.site + JUMP_SIZE)
        return b"\xe9" + displacement.to_bytes(4, "little", signed=True)

    @property
    def interior(self) -> Range:
        """The addresses at which an instruction may have started that is overwritten now (the JTPR)."""
        return Range(self.site + 1, self.site + JUMP_SIZE)


@dataclass(frozen=True, slots=True)
class Change:
    """What one region is to become: `old` is taken out (None: nothing is there), `new` put in (None: nothing)."""

    old: tuple[Detour, ...]
    new: Detour | None


class Engine(Protocol):
    """Puts detours into a target and takes them out."""

    def apply(self, changes: Sequence[Change]) -> dict[int, Refusal]:
        """Make all changes in one stop. A change that cannot be made leaves its region as it was: the refusals,
        by the index of the change."""
