"""Reading the rings: whole spans of committed records at a time, nothing in them trusted.

A writer in the target reserves a span by moving the ring's head, writes the record with PENDING_MAGIC first
and RECORD_MAGIC last. The reader takes committed records up to the first that is not, copies and zeroes them,
and moves the tail; only then can their bytes be reserved again. What the reader works on is always its copy.

A record that is never committed (its thread was killed, or jumped out of a signal handler) is a hole: the
ring behind it waits until the caller knows that no thread is inside that code any more, and says so with
`skip_holes`. Anything that is no record (the target can write here what it likes) is skipped to the next
record and counted in `damaged`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from sidestep.events.layout import (
    PENDING_MAGIC,
    RECORD_MAGIC,
    RING_CONTROL_SIZE,
    RING_HEAD_OFFSET,
    RING_TAIL_OFFSET,
    ring_offset,
)

_ZEROS = memoryview(bytes(1 << 16))
_FIRST_LOOK = 4  # records that are looked at together, first; more when they are alike
_FURTHEST_LOOK = 4096


class Run(NamedTuple):
    """Consecutive records of one event: `records` times its size in `data`."""

    event: int
    records: int
    data: bytes


class RecordShape(NamedTuple):
    """Which event has a certain header word, and how many bytes each of its records has."""

    event: int
    size: int


class Ring:
    """One ring in the shared memory, of `size` bytes (a power of two)."""

    def __init__(self, shared: memoryview, number: int, size: int) -> None:
        """`shared` is the whole memfd, mapped; IndexError when the ring is not in it."""
        start = ring_offset(number, size)
        if start + RING_CONTROL_SIZE + size > len(shared):
            raise IndexError(f"ring {number} lies outside the shared memory")
        self.number, self.size = number, size
        self.damaged = 0  # places where something else than a record was found
        self.holes = 0  # records that were reserved and never committed
        self.unfinished: Counter[int] = Counter()  # of these, the ones whose event is known, for each
        self.drained = True  # nothing reserved was left behind by the last take()
        self._control = shared[start : start + RING_CONTROL_SIZE].cast("Q")
        self._bytes = shared[start + RING_CONTROL_SIZE : start + RING_CONTROL_SIZE + size]
        self._words = self._bytes.cast("Q")
        self._tail = self._control[RING_TAIL_OFFSET // 8] & ~7
        self.waits_since: float | None = None  # when a record that is not committed was first in the way
        self.holes_below = (
            0  # up to this position nobody is writing any more: what is not committed is a hole
        )

    @property
    def head(self) -> int:
        """How many bytes were ever reserved."""
        return self._control[RING_HEAD_OFFSET // 8]

    @property
    def tail(self) -> int:
        """How many bytes were ever taken."""
        return self._tail

    def close(self) -> None:
        """Lets go of the mapping; the ring cannot be used afterwards."""
        for view in (self._words, self._bytes, self._control):
            view.release()

    def take(self, shapes: Mapping[int, RecordShape], *, skip_holes: bool = False) -> list[Run]:
        """Takes what is committed. `shapes` has each known header word (a record's first 8 bytes).

        With `skip_holes` records that are reserved but not committed are dropped: only when no thread can
        still be writing one.
        """
        head = self._control[RING_HEAD_OFFSET // 8]
        tail = self._tail
        if head == tail:
            self.drained, self.waits_since = True, None
            return []
        if head & 7 or not 0 <= head - tail <= self.size:
            self._reset(head)
            return []
        runs: list[Run] = []
        position = tail
        while position < head:
            word = self._words[(position & self.size - 1) >> 3]
            shape = shapes.get(word)
            if shape is not None and shape.size <= head - position:
                position = self._take_run(position, head, word, shape, runs)
            elif (
                shape is None
                and (word == 0 or word & 0xFFFF == PENDING_MAGIC)
                and not skip_holes
                and position >= self.holes_below
            ):
                break
            else:
                position = self._skip(position, head, shapes)
        self.drained = position >= head
        if self.drained or position > tail:
            self.waits_since = None
        elif self.waits_since is None:
            self.waits_since = time.monotonic()
        self._clear(tail, position)
        self._tail = position
        self._control[RING_TAIL_OFFSET // 8] = position
        return runs

    def _take_run(self, position: int, head: int, word: int, shape: RecordShape, runs: list[Run]) -> int:
        """Copies the records from `position` on whose header word is `word`; returns where they end."""
        offset = position & self.size - 1
        whole = min(head - position, self.size - offset) // shape.size
        if whole == 0:  # it begins at the ring's end and goes on at its start
            behind = shape.size - (self.size - offset)
            runs.append(Run(shape.event, 1, bytes(self._bytes[offset:]) + bytes(self._bytes[:behind])))
            return position + shape.size
        count = self._alike(offset // 8, shape.size // 8, whole, word)
        runs.append(Run(shape.event, count, bytes(self._bytes[offset : offset + count * shape.size])))
        return position + count * shape.size

    def _alike(self, first: int, stride: int, limit: int, word: int) -> int:
        """How many records, `stride` words apart, start with `word`; at least 1, at most `limit`."""
        count, look = 1, _FIRST_LOOK
        while count < limit:
            look = min(look, limit - count)
            start = first + count * stride
            column = self._words[start : start + (look - 1) * stride + 1 : stride].tolist()
            if column.count(word) != look:
                return count + next(index for index, other in enumerate(column) if other != word)
            count += look
            look = min(look * 4, _FURTHEST_LOOK)
        return count

    def _skip(self, position: int, head: int, shapes: Mapping[int, RecordShape]) -> int:
        """Passes over what is not a committed record; returns where the next record is, or `head`.

        A record that was begun says its size, so that it is passed exactly. One that was only reserved is all
        zero up to the next record.
        """
        word = self._words[(position & self.size - 1) >> 3]
        if word == 0 or word & 0xFFFF == PENDING_MAGIC:
            self.holes += 1
            shape = shapes.get(word - PENDING_MAGIC + RECORD_MAGIC)
            if shape is not None and shape.size <= head - position:
                self.unfinished[shape.event] += 1
                return position + shape.size
        else:
            self.damaged += 1
        position += 8
        while position < head and not self._is_record(position, head, shapes):
            position += 8
        return position

    def _is_record(self, position: int, head: int, shapes: Mapping[int, RecordShape]) -> bool:
        """Whether a record, committed or begun, seems to start at `position`."""
        word = self._words[(position & self.size - 1) >> 3]
        if word & 0xFFFF == PENDING_MAGIC:
            word += RECORD_MAGIC - PENDING_MAGIC
        shape = shapes.get(word)
        return shape is not None and shape.size <= head - position

    def _reset(self, head: int) -> None:
        """The head is impossible: forget the ring's content and go on from there."""
        self.damaged += 1
        self.drained = True
        self._clear(0, self.size)
        self._tail = head & ~7
        self._control[RING_TAIL_OFFSET // 8] = self._tail

    def _clear(self, start: int, end: int) -> None:
        """Zeroes the ring from position `start` to `end`, at most once around."""
        while start < end:
            offset = start & self.size - 1
            length = min(end - start, self.size - offset, len(_ZEROS))
            self._bytes[offset : offset + length] = _ZEROS[:length]
            start += length
