"""The events of one session, as an iterator over what its rings hold."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

from sidestep.errors import TargetError
from sidestep.events.clock import Clock
from sidestep.events.decode import Event, EventDecoder
from sidestep.events.reader import EventReader
from sidestep.events.record import EventProgram

HOLE_PATIENCE = 0.02  # seconds that a ring may wait for one record
LOOKING_SHARE = 0.1  # of the time, at most, goes into looking whether such a record can still come
SHORTEST_SLEEP, LONGEST_SLEEP = 0.0005, 0.02  # seconds between two looks at the rings


class EventStream:
    """Reads events when somebody iterates. What finds its ring full meanwhile is counted as lost."""

    def __init__(
        self,
        view: memoryview,
        ring_count: int,
        ring_size: int,
        symbolize: Callable[[int], str],
        is_quiet: Callable[[], bool],
    ) -> None:
        """`is_quiet` looks whether no thread is in code of ours."""
        self._view = view
        self.reader = EventReader(view, ring_count, ring_size, Clock())
        self._symbolize = symbolize
        self._lock = threading.Lock()
        self._stopped = self._closed = False
        self._is_quiet = is_quiet
        self._next_look = 0.0

    def add(self, program: EventProgram) -> None:
        self.reader.add([EventDecoder(program, self._symbolize)])

    def finish(self, indexes: Sequence[int]) -> None:
        """Take all records of these events out of the rings, when nothing emits them any more. Others that
        are just being written may lie before them."""
        with self._lock:
            if self._closed or not any(map(self.reader.has, indexes)):
                return
            heads = self.reader.heads()
            self.reader.gather()
            deadline = time.monotonic() + HOLE_PATIENCE
            while not self.reader.has_passed(heads) and time.monotonic() < deadline:
                time.sleep(SHORTEST_SLEEP)
                self.reader.gather()
            if not self.reader.has_passed(heads) and self._looks_quiet():
                self.reader.declare_holes(heads)
                self.reader.gather()

    def _looks_quiet(self) -> bool:
        """Where that cannot be found out (a child is traced by somebody else, say) nothing is a hole yet."""
        try:
            return self._is_quiet()
        except (TargetError, OSError):
            return False

    def remove(self, indexes: Sequence[int]) -> None:
        """To be called behind `finish`."""
        self.reader.remove(indexes)

    def balance(self, index: int, fired: int, lost: int) -> None:
        """Count as missing what fired and was neither taken from a ring nor counted as lost: its thread was
        killed, or jumped out, before the record was there, or the program wrote over it. Behind `finish` or
        `end`."""
        left = fired - lost - self.reader.delivered[index] - self.reader.missing[index]
        if left > 0:
            self.reader.write_off(index, left)

    def missing(self, index: int) -> int:
        """Records of an event that were begun, or only counted, and will never be there."""
        return self.reader.missing[index]

    @property
    def unclaimed(self) -> int:
        """Records that were never begun, of which nothing else is known."""
        return self.reader.unclaimed

    def stop(self) -> None:
        """End the iteration in `events` soon; may be called from a signal handler or another thread."""
        self._stopped = True

    def poll(self) -> list[Event]:
        """The events that are final by now, by time."""
        with self._lock:
            if self._closed:
                return []
            found = self.reader.poll()
            if self.reader.waits_longer(HOLE_PATIENCE) and time.monotonic() > self._next_look:
                # Somebody was killed, or jumped out, between reserving a record and committing it; what was
                # reserved by now, all of it, will not be written any more if nobody is in code of ours.
                began = time.monotonic()
                heads = self.reader.heads()
                quiet = self._looks_quiet()
                ended = time.monotonic()
                self._next_look = ended + max((ended - began) / LOOKING_SHARE, HOLE_PATIENCE)
                if quiet:
                    self.reader.declare_holes(heads)
                    found += self.reader.poll()
            return found

    def settle(self, rings: Sequence[int]) -> None:
        """Take what is left in rings whose writers have ended."""
        with self._lock:
            if not self._closed:
                self.reader.settle(rings)

    def end(self) -> None:
        """Take everything out of the rings, after the last hit: what is not committed is a hole."""
        with self._lock:
            if not self._closed:
                self.reader.gather(skip_holes=True)

    def flush(self) -> list[Event]:
        """Everything that is there, by time."""
        with self._lock:
            return [] if self._closed else self.reader.flush()

    def _flush_of_ended(self) -> list[Event]:
        """The same when the target has ended: nobody completes what it left, unless a child does."""
        with self._lock:
            if self._closed:
                return []
            heads = self.reader.heads()
            if self._looks_quiet():
                self.reader.declare_holes(heads)
            return self.reader.flush()

    def events(self, timeout: float | None, alive: Callable[[], bool]) -> Iterator[Event]:
        """Events by time, until `timeout` seconds are over, `stop()`, `close()`, or the end of the target."""
        deadline = None if timeout is None else time.monotonic() + timeout
        self._stopped = False
        sleep = SHORTEST_SLEEP
        while True:
            if not alive():
                yield from self._flush_of_ended()
                return
            if self._stopped or self._closed:
                yield from self.flush()
                return
            late = deadline is not None and time.monotonic() >= deadline
            found = self.poll()
            yield from found
            if late:
                # What the first look took is final by the second: nothing older than that can come any more.
                yield from self.poll()
                return
            sleep = SHORTEST_SLEEP if found else min(2 * sleep, LONGEST_SLEEP)
            left = sleep if deadline is None else max(min(sleep, deadline - time.monotonic()), 0)
            time.sleep(left)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self.reader.close()
            self._view.release()
