"""The events of one session, as an iterator over what its rings hold."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

from sidestep.events.clock import Clock
from sidestep.events.decode import Event, EventDecoder
from sidestep.events.reader import EventReader
from sidestep.events.record import EventProgram

HOLE_PATIENCE = 0.2  # seconds that a ring may wait for one record
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

    def remove(self, indexes: Sequence[int]) -> None:
        self.reader.remove(indexes)

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
                # reserved by now will not be written any more if nobody is in code of ours.
                self._next_look = time.monotonic() + HOLE_PATIENCE
                heads = self.reader.heads()
                if self._is_quiet():
                    self.reader.declare_holes(heads)
                    found += self.reader.poll()
            return found

    def settle(self, rings: Sequence[int]) -> None:
        """Take what is left in rings whose writers have ended."""
        with self._lock:
            self.reader.settle(rings)

    def flush(self, *, skip_holes: bool = False) -> list[Event]:
        """Everything that is there, by time: after the last hit."""
        with self._lock:
            return [] if self._closed else self.reader.flush(skip_holes=skip_holes)

    def events(self, timeout: float | None, alive: Callable[[], bool]) -> Iterator[Event]:
        """Events by time, until `timeout` seconds are over, `stop()`, `close()`, or the end of the target."""
        deadline = None if timeout is None else time.monotonic() + timeout
        self._stopped = False
        sleep = SHORTEST_SLEEP
        while True:
            ended = self._stopped or self._closed or not alive()
            late = deadline is not None and time.monotonic() >= deadline
            found = self.flush() if ended else self.poll()
            yield from found
            if ended:
                return
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
