"""Which probes there are, and which stretches of code have to change when some come, go, or are switched.

A probepoint has its probes in the order of registration. Where the regions of probepoints meet they share one
region and one buffer (see safety.region), so a change of one probe can change its neighbours' region.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

from sidestep.address import Range
from sidestep.arch.x86_64.detour import Action, Record
from sidestep.compiler.faults import Site
from sidestep.probes import Kprobe
from sidestep.safety.region import Placement, Region, merge
from sidestep.symbols.resolve import Location
from sidestep.target.base import Detour

T = TypeVar("T")
_BUCKET_BITS = 6  # a few DCRs start in each 64 bytes


@dataclass(slots=True, eq=False)
class Placed:
    """A registered probe: where it is and what is done there. `index` is that of its counters."""

    probe: Kprobe
    index: int
    location: Location
    placement: Placement
    action: Action
    second_index: int | None = None  # of what met the condition, or of a handler's faults
    sites: tuple[Site, ...] = ()  # where its handler can end early

    @property
    def address(self) -> int:
        return self.placement.address

    @property
    def emits(self) -> bool:
        """Whether each hit that matches is an event."""
        return isinstance(self.action, Record) and self.action.emit


class Plan(NamedTuple):
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
        self._placed_near = _Near[Placed]()
        self._detours_near = _Near[Detour]()
        self._regions: dict[int, Region] = {}  # of the detours, by their sites

    def __contains__(self, probe: object) -> bool:
        return probe in self.placed

    def __iter__(self) -> Iterator[Placed]:
        return iter(self.placed.values())

    def add(self, placed: Placed) -> None:
        self.placed[placed.probe] = placed
        self._at.setdefault(placed.address, []).append(placed)
        self._placed_near.add(placed.placement.dcr, placed)

    def remove(self, probe: Kprobe) -> Placed:
        placed = self.placed.pop(probe)
        there = self._at[placed.address]
        there.remove(placed)
        if not there:
            del self._at[placed.address]
        self._placed_near.remove(placed.placement.dcr, placed)
        return placed

    def put_detour(self, detour: Detour, region: Region) -> None:
        self.detours[detour.site] = detour
        self._regions[detour.site] = region
        self._detours_near.add(detour.dcr, detour)

    def take_detour(self, detour: Detour) -> None:
        del self.detours[detour.site], self._regions[detour.site]
        self._detours_near.remove(detour.dcr, detour)

    def clear(self) -> None:
        """All probes and detours are gone."""
        self.placed.clear()
        self.detours.clear()
        self._regions.clear()
        self._at.clear()
        self._placed_near, self._detours_near = _Near(), _Near()

    def without_jumps(self, address: int, data: bytes) -> bytes:
        """Bytes read from the target at `address`, with those that our jumps replaced put back."""
        end = address + len(data)
        for detour in self._detours_near.meeting(Range(address, end)):
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
        plans: list[Plan] = []
        for _, placed, detours in self._stretches(touched):
            left = sorted(detours, key=attrgetter("site"))
            active = map(self.active_at, dict.fromkeys(each.address for each in placed))
            for region in self._shape(left, [_placement(there) for there in active if there]):
                replaced = tuple(detour for detour in left if detour.dcr.overlaps(region.dcr))
                left = [detour for detour in left if detour not in replaced]
                plans.append(Plan(replaced, region))
            plans += [Plan((detour,), None) for detour in left]
        return plans

    def _shape(self, detours: list[Detour], placements: list[Placement]) -> list[Region]:
        """The regions for `placements`, in place of `detours`.

        Where probes only went, nothing is detoured that was not before: so it cannot be refused because a
        thread that is still in an old buffer will come out there.
        """
        regions = merge(placements)
        before = [self._regions[detour.site] for detour in detours]
        wanted = {placement.address for placement in placements}
        if not wanted <= {address for region in before for address in region.probes}:
            return regions
        if all(any(old.dcr.covers(region.dcr) for old in before) for region in regions):
            return regions
        kept = ((region, tuple(filter(wanted.__contains__, region.probes))) for region in before)
        return [region._replace(probes=probes) for region, probes in kept if probes]

    def _stretches(self, touched: Iterable[Range]) -> list[_Stretch]:
        """The touched ranges, grown by every region that overlaps them, until none does any more."""
        stretches: list[_Stretch] = []
        for wanted in sorted(touched):
            while stretches and wanted.start < stretches[-1].span.end:
                before = stretches.pop().span
                wanted = Range(min(before.start, wanted.start), max(before.end, wanted.end))
            grown = self._grown(wanted)
            while stretches and grown.span.start < stretches[-1].span.end:
                before = stretches.pop().span
                grown = self._grown(Range(min(before.start, grown.span.start), grown.span.end))
            stretches.append(grown)
        return stretches

    def _grown(self, span: Range) -> _Stretch:
        while True:
            placed, detours = self._placed_near.meeting(span), self._detours_near.meeting(span)
            start, end = span
            for dcr in (*(each.placement.dcr for each in placed), *(each.dcr for each in detours)):
                start, end = min(start, dcr.start), max(end, dcr.end)
            if start == span.start and end == span.end:
                return _Stretch(span, placed, detours)
            span = Range(start, end)


def _placement(there: Sequence[Placed]) -> Placement:
    """What the probes at one address need together: all of its DCR moves if one of them needs that."""
    return max((placed.placement for placed in there), key=attrgetter("has_inner_branches"))


class _Stretch(NamedTuple):
    """Addresses, and all that lies there; nothing of it reaches beyond them."""

    span: Range
    placed: list[Placed]
    detours: list[Detour]


class _Near(Generic[T]):
    """Things that lie at ranges of addresses, found by those that they meet."""

    def __init__(self) -> None:
        self._buckets: dict[int, list[tuple[Range, T]]] = {}

    def add(self, where: Range, thing: T) -> None:
        for bucket in _buckets(where):
            self._buckets.setdefault(bucket, []).append((where, thing))

    def remove(self, where: Range, thing: T) -> None:
        for bucket in _buckets(where):
            there = self._buckets[bucket]
            there.remove((where, thing))
            if not there:
                del self._buckets[bucket]

    def meeting(self, where: Range) -> list[T]:
        """Each thing whose range overlaps this one, once."""
        first, last = where
        buckets = self._buckets
        return list(
            dict.fromkeys(
                thing
                for bucket in _buckets(where)
                for (start, end), thing in buckets.get(bucket, ())
                if start < last and first < end
            )
        )


def _buckets(where: Range) -> range:
    return range(where.start >> _BUCKET_BITS, (where.end - 1 >> _BUCKET_BITS) + 1)
