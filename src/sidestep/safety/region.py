"""Placements of single probes, and the regions that armed probes share.

A placement is the answer for one probepoint alone. Where the regions of several probepoints meet, `merge`
makes one region of them: one jump, one detour buffer, in which each probe is called before the copy of its
instruction.

Why hits stay exact. Call an address *clean* when nothing leads to it but falling through from the
instruction before it. A placement is made only after every address behind its start, up to the end of its
DCR, was found clean (but for branches of the DCR itself, which lead to copies).

* A probepoint inside a jump's bytes is clean, so whoever reaches it passed the jump and is in the buffer.
* A probepoint behind those five bytes keeps its original bytes. It may be served by a buffer alone only if
  it and all addresses back to the region's start are clean; then again whoever reaches it passed the jump.
  `merge` extends a region only along addresses that one of the merged placements found clean, without a
  gap.
* All other probepoints get a jump of their own. Two jumps never share a byte: a placement that starts
  inside another one's DCR is merged with it, and a DCR has at least the five bytes of its jump.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from sidestep.address import Range
from sidestep.arch.x86_64.insn import Instruction
from sidestep.arch.x86_64.placement import faulting
from sidestep.events.layout import JUMP_SIZE

Tactic = Literal["jump", "region", "padding"]


class Placement(NamedTuple):
    """Where the probe of one probepoint goes. Addresses are run-time addresses.

    address       the insertion address: the probe is called before the instruction that starts here
    dcr           the bytes that move to the detour buffer; the jump is written at its start. It starts before
                  `address` where there is no room behind it; then `address` may lie behind the jump's bytes
    instructions  the original instructions of the DCR; padding behind them that nothing executes is left
    out has_inner_branches  an instruction of the DCR, or a handler, leads to another one of it, so all of
    them must move notes         what a person who asks how the probe is placed should know
    """

    tactic: Tactic
    address: int
    dcr: Range
    instructions: tuple[Instruction, ...]
    has_inner_branches: bool = False
    notes: tuple[str, ...] = ()

    @property
    def start(self) -> int:
        """Where the jump is written."""
        return self.dcr.start

    @property
    def prohibited(self) -> Range:
        """The jump target prohibition region (JTPR): bytes 1 to 4 of the jump."""
        return Range(self.dcr.start + 1, self.dcr.start + JUMP_SIZE)

    @property
    def clean_end(self) -> int:
        """All addresses behind the start and before this one are clean."""
        return max(self.dcr.start + JUMP_SIZE, self.instructions[-1].next_ip)

    @property
    def may_fault(self) -> bool:
        """An instruction that moves may fault."""
        return faulting(self.instructions) is not None

    @property
    def interior(self) -> list[int]:
        """The addresses inside the DCR where a thread, a saved instruction pointer or a return address may
        stand that was there before the jump: each boundary but the first."""
        return [instruction.ip for instruction in self.instructions[1:]]


class Region(NamedTuple):
    """The bytes that one jump detours, with every probepoint that its buffer serves, ascending."""

    dcr: Range
    instructions: tuple[Instruction, ...]
    probes: tuple[int, ...]

    @property
    def start(self) -> int:
        """Where the jump is written."""
        return self.dcr.start

    @property
    def written(self) -> Range:
        """The bytes that the jump replaces; all others keep their original content."""
        return Range(self.dcr.start, self.dcr.start + JUMP_SIZE)

    @property
    def interior(self) -> list[int]:
        """Each instruction boundary of the DCR but the first: saved instruction pointers there must be looked
        for, behind the jump's bytes too, since a thread that returns there would miss a probe."""
        return [instruction.ip for instruction in self.instructions[1:]]


class _Growing:
    """A region in the making. Addresses after `start` and before `clean` are clean."""

    def __init__(self, first: Placement) -> None:
        self.start = first.start
        self.end = first.dcr.end
        self.clean = first.clean_end
        self.instructions = {instruction.ip: instruction for instruction in first.instructions}
        self.probes = {first.address}

    def take(self, placement: Placement) -> None:
        """`placement` starts inside the region."""
        if placement.start >= self.clean:
            raise AssertionError(f"the regions at {self.start:#x} and {placement.start:#x} cannot be merged")
        self.clean = max(self.clean, placement.clean_end)
        self.probes.add(placement.address)
        probed = next(each for each in placement.instructions if each.ip == placement.address)
        end = placement.dcr.end if placement.has_inner_branches else probed.next_ip
        for instruction in placement.instructions:
            if instruction.ip < end:
                self.instructions.setdefault(instruction.ip, instruction)
        self.end = max(self.end, end)

    def finish(self) -> Region:
        instructions = tuple(self.instructions[ip] for ip in sorted(self.instructions))
        return Region(Range(self.start, self.end), instructions, tuple(sorted(self.probes)))


def merge(placements: Iterable[Placement]) -> list[Region]:
    """The regions that serve all `placements`, ascending: as many as can have a jump of their own.

    Placements of different modules may be mixed. The result depends on the set of placements only, not on
    the order in which they were made or armed.
    """
    regions: list[Region] = []
    growing: _Growing | None = None
    for placement in sorted(placements, key=lambda each: (each.start, each.address)):
        if growing is not None and placement.start < growing.end:
            growing.take(placement)
            continue
        if growing is not None:
            regions.append(growing.finish())
        growing = _Growing(placement)
    if growing is not None:
        regions.append(growing.finish())
    return regions
