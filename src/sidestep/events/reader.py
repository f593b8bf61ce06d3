"""All rings together: the events of all of them in the order of time.

Rings are read one after the other, so what is merged must wait until no ring can still bring something older.
A record's tsc is read after its span was reserved. So when a ring was read to its head, whatever it brings
later is younger than a tsc taken just before; the smallest of these over all rings is the watermark, up to
which events are final.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable
from itertools import repeat
from operator import itemgetter
from typing import TypeAlias

from sidestep import collector
from sidestep.events.clock import Clock
from sidestep.events.decode import Event, EventDecoder, Raw
from sidestep.events.ring import RecordShape, Ring, Run

_MOST_WAITING = 1 << 20  # records; more would only pile up behind a ring that stands still


_Waiting: TypeAlias = tuple[int, EventDecoder, Raw]
"""A record between its ring and its turn; the tsc first."""

_TIME = itemgetter(0)


class EventReader:
    """Reads the rings of one session. For each event's index `delivered` counts the records taken, `missing`
    those that will never be there."""

    def __init__(self, shared: memoryview, ring_count: int, ring_size: int, clock: Clock) -> None:
        self.clock = clock
        self.rings = [Ring(shared, number, ring_size) for number in range(ring_count)]
        self.delivered: Counter[int] = Counter()
        self.missing: Counter[int] = Counter()
        self._claimed = 0  # of the holes, those that belong to a known event
        self._shapes: dict[int, RecordShape] = {}
        self._decoders: dict[int, EventDecoder] = {}
        self._bounds = [0] * ring_count
        self._waiting: list[_Waiting] = []

    def close(self) -> None:
        for ring in self.rings:
            ring.close()

    def add(self, decoders: Iterable[EventDecoder]) -> None:
        """To be called before the events' probes are armed."""
        for decoder in decoders:
            index = decoder.program.index
            self._decoders[index] = decoder
            self.delivered[index] = self.missing[index] = 0
            self._shapes[decoder.format.header_word(index)] = RecordShape(index, decoder.format.size)

    def remove(self, indexes: Iterable[int]) -> None:
        """To be called when the events' records were all read: later ones count as damage."""
        for index in indexes:
            decoder = self._decoders.pop(index, None)
            if decoder is not None:
                del self._shapes[decoder.format.header_word(index)]

    @property
    def damaged(self) -> int:
        """Places in the rings that held something else than records."""
        return sum(ring.damaged for ring in self.rings)

    @property
    def holes(self) -> int:
        """Records that were begun and never finished."""
        return sum(ring.holes for ring in self.rings)

    @property
    def unclaimed(self) -> int:
        """Holes of which it is not known what event they were to be."""
        return max(self.holes - self._claimed, 0)

    def write_off(self, index: int, count: int) -> None:
        """So many records of an event are in no ring and will never be."""
        self.missing[index] += count
        self._claimed += count

    def has(self, index: int) -> bool:
        """Whether an event has that index."""
        return index in self._decoders

    def has_passed(self, heads: Iterable[int]) -> bool:
        """Whether everything was taken that had been reserved when `heads` were read."""
        return all(ring.tail >= head for ring, head in zip(self.rings, heads, strict=True))

    @property
    def drained(self) -> bool:
        """Nothing was left in any ring by the last poll."""
        return all(ring.drained for ring in self.rings)

    def take_runs(self, *, skip_holes: bool = False) -> list[Run]:
        """What the rings hold, undecoded, ring after ring."""
        runs: list[Run] = []
        before = self.clock.tsc()
        for ring in self.rings:
            runs += self._take(ring, skip_holes)
            if ring.drained:
                self._bounds[ring.number] = before
        return runs

    def waits_longer(self, seconds: float) -> bool:
        """Whether some ring has stood still for so long at a record that is not committed."""
        latest = time.monotonic() - seconds
        return any(ring.waits_since is not None and ring.waits_since < latest for ring in self.rings)

    def heads(self) -> list[int]:
        """How far each ring is reserved."""
        return [ring.head for ring in self.rings]

    def declare_holes(self, heads: Iterable[int]) -> None:
        """Nobody is writing what was reserved when `heads` were read."""
        for ring, head in zip(self.rings, heads, strict=True):
            ring.holes_below = head

    def settle(self, rings: Iterable[int]) -> None:
        """Takes everything from rings (by number) whose only writers have ended; their holes are dropped."""
        for number in rings:
            self._note(self._take(self.rings[number], skip_holes=True))

    def poll(self) -> list[Event]:
        """The events that are final by now, by time. Does not wait; to be called some times a second."""
        with collector.paused():
            latest = self._collect(skip_holes=False)
            waiting = self._waiting
            final = bisect_left(waiting, min(self._bounds, default=0), key=_TIME)
            first = max(final, len(waiting) - _MOST_WAITING)
            # What says that it is from the future is not waited for: a target could fill the memory with it.
            last = max(first, bisect_right(waiting, latest, key=_TIME))
            self._waiting = waiting[first:last]
            return self._events(waiting[:first] + waiting[last:])

    def flush(self, *, skip_holes: bool = False) -> list[Event]:
        """All events that there are, by time. For `skip_holes` see Ring.take."""
        with collector.paused():
            self._collect(skip_holes=skip_holes)
            released, self._waiting = self._waiting, []
            return self._events(released)

    def gather(self, *, skip_holes: bool = False) -> None:
        """Empties the rings as far as they can be; what was there waits for `poll` or `flush`."""
        with collector.paused():
            self._collect(skip_holes=skip_holes)

    def _collect(self, *, skip_holes: bool) -> int:
        """Moves what the rings hold to what waits, by time. Returns the tsc behind all of it."""
        self._note(self.take_runs(skip_holes=skip_holes))
        self._waiting.sort(key=_TIME)
        self.clock.calibrate()
        return self.clock.tsc()

    def _take(self, ring: Ring, skip_holes: bool) -> list[Run]:
        runs = ring.take(self._shapes, skip_holes=skip_holes)
        for run in runs:
            self.delivered[run.event] += run.records
        while ring.unfinished:
            self.write_off(*ring.unfinished.popitem())
        return runs

    def _note(self, runs: list[Run]) -> None:
        for run in runs:
            decoder = self._decoders[run.event]
            records = list(decoder.unpack(run.data))
            self._waiting += zip(map(_TIME, records), repeat(decoder), records)

    def _events(self, records: list[_Waiting]) -> list[Event]:
        tsc, seconds, factor = self.clock.line
        return [Event(decoder, raw, seconds + (time - tsc) * factor) for time, decoder, raw in records]
