"""All rings together: the events of all of them in the order of time.

Rings are read one after the other, so what is merged must wait until no ring can still bring something older.
A record's tsc is read after its span was reserved. So when a ring was read to its head, whatever it brings
later is younger than a tsc taken just before; the smallest of these over all rings is the watermark, up to
which events are final.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from sidestep.events.clock import Clock
from sidestep.events.decode import Event, EventDecoder, Raw
from sidestep.events.ring import RecordShape, Ring, Run

_MOST_WAITING = 1 << 20  # records; more would only pile up behind a ring that stands still


class _Waiting(NamedTuple):
    """A record between its ring and its turn."""

    tsc: int
    event: int
    raw: Raw


class EventReader:
    """Reads the rings of one session. `delivered` counts the records taken, for each probe index."""

    def __init__(self, shared: memoryview, ring_count: int, ring_size: int, clock: Clock) -> None:
        self.clock = clock
        self.rings = [Ring(shared, number, ring_size) for number in range(ring_count)]
        self.delivered: Counter[int] = Counter()
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
    def drained(self) -> bool:
        """Nothing was left in any ring by the last poll."""
        return all(ring.drained for ring in self.rings)

    def take_runs(self, *, skip_holes: bool = False) -> list[Run]:
        """What the rings hold, undecoded, ring after ring."""
        runs: list[Run] = []
        before = self.clock.tsc()
        for ring in self.rings:
            runs += ring.take(self._shapes, skip_holes=skip_holes)
            if ring.drained:
                self._bounds[ring.number] = before
        for run in runs:
            self.delivered[run.event] += run.records
        return runs

    def poll(self) -> list[Event]:
        """The events that are final by now, by time. Does not wait; to be called some times a second."""
        self._collect(skip_holes=False)
        watermark = min(self._bounds, default=0)
        ready = bisect_left(self._waiting, watermark, key=lambda record: record.tsc)
        return self._release(max(ready, len(self._waiting) - _MOST_WAITING))

    def flush(self, *, skip_holes: bool = False) -> list[Event]:
        """All events that there are, by time. For `skip_holes` see Ring.take."""
        self._collect(skip_holes=skip_holes)
        return self._release(len(self._waiting))

    def _collect(self, *, skip_holes: bool) -> None:
        runs = self.take_runs(skip_holes=skip_holes)
        self.clock.calibrate()
        if not runs:
            return
        latest = self.clock.tsc()
        waiting = self._waiting
        for run in runs:
            for raw in self._decoders[run.event].unpack(run.data):
                waiting.append(_Waiting(min(raw[0], latest), run.event, raw))
        waiting.sort(key=lambda record: record.tsc)

    def _release(self, count: int) -> list[Event]:
        ready = self._waiting[:count]
        del self._waiting[:count]
        decoders, clock = self._decoders, self.clock
        return [Event(decoders[record.event], record.raw, clock) for record in ready]
