"""What an engine offers to the code that knows what a probe means: text changed in whole batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sidestep.address import Range
from sidestep.errors import Refusal

JUMP_SIZE = 5


@dataclass(frozen=True, slots=True)
class Buffer:
    """A detour buffer, ready to be entered at `address`.

    `boundaries`: (original address, address in the buffer) where the machine's state is that of the program at the
    original address. The copy of an instruction lies behind its actions, so that a thread moved there is not
    counted again.
    """

    address: int
    code: bytes
    boundaries: tuple[tuple[int, int], ...]

    @property
    def span(self) -> Range:
        return Range(self.address, self.address + len(self.code))


@dataclass(frozen=True, slots=True)
class Label:
    """A probe in the table that other controllers read: its index there, its probepoint, and how it is shown."""

    index: int
    address: int
    name: str


@dataclass(frozen=True, slots=True)
class Detour:
    """A jump in the text and the buffer that it leads to."""

    dcr: Range  # the detoured code region: whole instructions, the jump is at its start
    interior: tuple[int, ...]  # where its instructions start, but the first: nobody may return there
    original: bytes  # the bytes that the jump replaces
    buffer: Buffer
    labels: tuple[Label, ...]

    @property
    def site(self) -> int:
        return self.dcr.start

    @property
    def jump(self) -> bytes:
        displacement = self.buffer.address - (self.site + JUMP_SIZE)
        return b"\xe9" + displacement.to_bytes(4, "little", signed=True)

    @property
    def written(self) -> Range:
        return Range(self.site, self.site + JUMP_SIZE)


@dataclass(frozen=True, slots=True)
class Change:
    """What a stretch of code is to become: the `old` detours are taken out, `new` is put in (None: nothing)."""

    old: tuple[Detour, ...]
    new: Detour | None


class Engine(Protocol):
    """Puts detours into a target and takes them out."""

    def apply(self, changes: Sequence[Change]) -> dict[int, Refusal]:
        """Make all changes in one stop. A change that cannot be made leaves its stretch as it was: the refusals,
        by the index of the change."""
