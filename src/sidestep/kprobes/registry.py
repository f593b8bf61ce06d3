"""Which probes there are, and which stretches of code have to change when some come, go, or are switched.

A probepoint has its probes in the order of registration. Where the regions of probepoints meet they share one
region and one buffer (see safety.region), so a change of one probe can change its neighbours' region.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sidestep.address import Range
from sidestep.arch.x86_64.detour import Action
from sidestep.probes import Kprobe
from sidestep.safety.region import Placement, Region, merge
from sidestep.symbols.resolve import Location
from sidestep.target.base import Detour


@dataclass(slots=True, eq=False)
class Placed:
    """A registered probe: where it is and what is done there. `index` is that of its counters."""

    probe: Kprobe
    index: int
    location: Location
    placement: Placement
    action: Action
    matched_index: int | None = None

    @property
    def address(self) -> int:
        return self.placement.address


@dataclass(frozen=True, slots=True)
class Plan:
    """A stretch of code that changes: the detours that are there, and the region that comes instead, if
    any."""

    old: tuple[Detour, ...]
    region: Region | None


class Registry:
    """The probes of one session, and the detours that serve them."""

    def __init__(self) -> None:
        self.placed: dict[Kprobe, Placed] = {}
        self.detours: dict[int, Detour] = {}
        self.enabled = True
        self._at: dict[int, list[Placed]] = {}
        self._by_page: dict[int, list[Detour]] = {}

    def __contains__(self, probe: object) -> bool:
        return probe in self.placed

    def __iter__(self) -> Iterator[Placed]:
        return iter(self.placed.values())

    def add(self, placed: Placed) -> None:
        self.placed[placed.probe] = placed
        self._at.setdefault(placed.address, []).append(placed)

    def remove(self, probe: Kprobe) -> Placed:
        placed = self.placed.pop(probe)
        there = self._at[placed.address]
        there.remove(placed)
        if not there:
            del self._at[placed.address]
        return placed

    def put_detour(self, detour: Detour) -> None:
        self.detours[detour.site] = detour
        for page in range(detour.site >> 12, (detour.written.end - 1 >> 12) + 1):
            self._by_page.setdefault(page, []).append(detour)

    def take_detour(self, detour: Detour) -> None:
        del self.detours[detour.site]
        for page in range(detour.site >> 12, (detour.written.end - 1 >> 12) + 1):
            self._by_page[page].remove(detour)

    def without_jumps(self, address: int, data: bytes) -> bytes:
        """Bytes read from the target at `address`, with those that our jumps replaced put back."""
        end = address + len(data)
        for page in range(address >> 12, (end - 1 >> 12) + 1):
            for detour in self._by_page.get(page, ()):
                low, high = max(address, detour.site), min(end, detour.written.end)
                if low < high:
                    original = detour.original[low - detour.site : high - detour.site]
                    data = data[: low - address] + original + data[high - address :]
        return data

    def active_at(self, address: int) -> list[Placed]:
        """The probes that are to be hit at an address, in the order of registration."""
        return [placed for placed in self._at.get(address, ()) if self.enabled and not placed.probe.disabled]

    def plans(self, touched: Iterable[Range]) -> list[Plan]:
        """What has to change where probes whose regions are `touched` came, went or were switched."""
        stretches = self._stretches(touched)
        placements: list[list[Placement]] = [[] for _ in stretches]
        starts = [stretch.start for stretch in stretches]
        for address in self._at:
            active = self.active_at(address)
            if active and (index := _find(stretches, starts, active[0].placement.dcr)) is not None:
                placements[index].append(active[0].placement)
        plans: list[Plan] = []
        old: list[list[Detour]] = [[] for _ in stretches]
        for detour in self.detours.values():
            if (index := _find(stretches, starts, detour.dcr)) is not None:
                old[index].append(detour)
        for inside, detours in zip(placements, old, strict=True):
            left = list(detours)
            for region in merge(inside):
                replaced = tuple(detour for detour in left if detour.dcr.overlaps(region.dcr))
                left = [detour for detour in left if detour not in replaced]
                plans.append(Plan(replaced, region))
            plans += [Plan((detour,), None) for detour in left]
        return plans

    def _stretches(self, touched: Iterable[Range]) -> list[Range]:
        """The touched ranges, grown by every region that overlaps them, until none does any more."""
        wanted = sorted((r.start, r.end, True) for r in touched)
        others = [
            (placed[0].placement.dcr.start, placed[0].placement.dcr.end, False)
            for placed in self._at.values()
        ]
        others += [(detour.dcr.start, detour.dcr.end, False) for detour in self.detours.values()]
        stretches: list[Range] = []
        start = end = -1
        is_wanted = False
        for low, high, mark in sorted(wanted + others):
            if low >= end:
                if is_wanted:
                    stretches.append(Range(start, end))
                start, end, is_wanted = low, high, mark
            else:
                end, is_wanted = max(end, high), is_wanted or mark
        if is_wanted:
            stretches.append(Range(start, end))
        return stretches


def _find(stretches: list[Range], starts: list[int], dcr: Range) -> int | None:
    index = bisect_right(starts, dcr.start) - 1
    return index if index >= 0 and dcr.start < stretches[index].end else None
