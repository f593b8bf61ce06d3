"""Reading the counters: the hits of each probe, in all and by process.

Counters only grow. A hit is in exactly one block, so a sum over the blocks is exact once nobody counts any
more, and never too high before.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import add
from typing import TypeVar

from sidestep.arch.x86_64.exchange import add as add_in_one_step
from sidestep.events.layout import (
    BLOCK_COUNT,
    BLOCK_ENTRY_SIZE,
    BLOCKS_EXHAUSTED_OFFSET,
    BLOCKS_OFFSET,
    COUNTERS_OFFSET,
    DATA_SIZE,
    FIRST_FREE_BLOCK,
    KIND_FREE,
    LOST_OFFSET,
    PROBE_CAPACITY,
    SCRATCH_BLOCK,
    BlockEntry,
    block_offset,
    read_block_entry,
)
from sidestep.events.retired import Retired

T = TypeVar("T")


class Counters:
    """The counters in a mapping of the shared memory. To read them disturbs nobody; any thread may."""

    def __init__(self, shared: memoryview) -> None:
        self._shared = shared
        self._cells = shared[COUNTERS_OFFSET:DATA_SIZE].cast("Q")
        self._entries = shared[BLOCKS_OFFSET : block_offset(BLOCK_COUNT - 1) + BLOCK_ENTRY_SIZE].cast("Q")
        self._lost = shared[LOST_OFFSET : LOST_OFFSET + PROBE_CAPACITY * 8].cast("Q")
        self._fixed = threading.local()  # `blocks`: what `fixed_blocks` found, for the thread that is in it
        self.maxima: set[int] = set()  # the indexes that hold maxima, not counts
        self._retired = Retired(self.maxima)  # of blocks that were taken back
        self._moves = 0  # odd while `retire` moves hits there

    def close(self) -> None:
        """Lets go of the mapping."""
        self._cells.release()
        self._entries.release()
        self._lost.release()

    def blocks(self) -> list[tuple[int, BlockEntry]]:
        """The blocks in use, with their numbers; those of threads and processes that have ended, too."""
        fixed: list[tuple[int, BlockEntry]] | None = getattr(self._fixed, "blocks", None)
        if fixed is not None:
            return fixed
        # Most entries are zero; asked for each probe, this must not take apart all of them.
        used = [block for block, word in enumerate(self._entries.tolist()[::2]) if word]
        entries = ((block, read_block_entry(self._shared, block)) for block in used)
        return [
            (block, entry) for block, entry in entries if entry.kind != KIND_FREE and block != SCRATCH_BLOCK
        ]

    @contextmanager
    def fixed_blocks(self) -> Iterator[None]:
        """Within the `with`, look for blocks only once: for many probes that nobody counts any more."""
        self._fixed.blocks = self.blocks()
        try:
            yield
        finally:
            self._fixed.blocks = None

    def _unmoved(self, read: Callable[[], T]) -> T:
        """What `read` says while no hits move. Without a lock: a signal handler may read, too."""
        while True:
            moves = self._moves
            if moves % 2:
                time.sleep(0)
                continue
            try:
                found = read()
            except RuntimeError:  # a pid was added to `_retired` meanwhile
                if moves == self._moves:
                    raise
                continue
            if moves == self._moves:
                return found

    def totals(self, count: int) -> list[int]:
        """The hits of the probes with the indexes 0 .. `count` - 1."""
        return self._unmoved(lambda: self._totals(count))

    def _totals(self, count: int) -> list[int]:
        sums = [0] * count
        for index, hits in self._retired.totals().items():
            if index < count:
                sums[index] = hits
        for block, _ in self.blocks():
            start = block * PROBE_CAPACITY
            sums = list(map(add, sums, self._cells[start : start + count].tolist()))
        return sums

    def total(self, index: int) -> int:
        return sum(self.by_pid(index).values())

    def by_pid(self, index: int) -> Counter[int]:
        """The hits of a probe by pid, as the process itself sees it; pid 0: what found no block."""
        return self._unmoved(lambda: self._by_pid(index))

    def _by_pid(self, index: int) -> Counter[int]:
        hits: Counter[int] = Counter()
        hits.update(self._retired.by_pid(index))
        for block, entry in self.blocks():
            hits[entry.pid] += self._cells[block * PROBE_CAPACITY + index]
        return +hits

    def largest(self, index: int) -> int:
        """The largest value of a cell over all threads."""
        return self._unmoved(lambda: self._largest(index))

    def _largest(self, index: int) -> int:
        return max(
            [
                *self._retired.by_pid(index).values(),
                *(self._cells[block * PROBE_CAPACITY + index] for block, _ in self.blocks()),
            ],
            default=0,
        )

    def lost(self, index: int) -> int:
        """Events of a probe that found their ring full."""
        return self._lost[index]

    def last_fault(self, index: int) -> int:
        """What a handler whose faults are counted there answered at the last one, 0 if there was none."""
        return self._lost[index]

    def add_shared(self, index: int, amount: int) -> None:
        """Counts for no thread: exact, since whoever has no block does it by one instruction, too."""
        add_in_one_step(self._cells[index : index + 1], amount)

    def clear(self, index: int) -> None:
        """Sets a probe's counters to zero, for a new probe: only when no thread can be counting it."""
        self._lost[index] = 0
        self.clear_cells(index)

    def clear_cells(self, index: int) -> None:
        """Sets the cells of all threads to zero: what they hold is a maximum, or nobody counts any more."""
        self._retired.clear(index)
        for block, _ in self.blocks():
            self._cells[block * PROBE_CAPACITY + index] = 0

    def ended(self, is_alive: Callable[[int], bool]) -> dict[int, list[int]]:
        """The blocks of processes that have ended, by pid. `is_alive` is asked once for each pid.

        Only where all processes are in the controller's pid namespace: elsewhere a pid tells nothing.
        """
        blocks: dict[int, list[int]] = {}
        for block, entry in self.blocks():
            if block >= FIRST_FREE_BLOCK:
                blocks.setdefault(entry.pid, []).append(block)
        return {pid: numbers for pid, numbers in blocks.items() if not is_alive(pid)}

    def retire(self, pid: int, count: int) -> None:
        """Takes back the blocks of a process that has ended, so that others can claim them; its hits stay.

        `count` is one more than the highest probe index in use. The rings that go with the blocks must be
        settled before (EventReader.settle), since their next owners write on where the last ones stopped. One
        thread at a time.
        """
        self._moves += 1
        try:
            self._retire(pid, count)
        finally:
            self._moves += 1

    def _retire(self, pid: int, count: int) -> None:
        for block, entry in self.blocks():
            if entry.pid != pid or block < FIRST_FREE_BLOCK:
                continue
            start = block * PROBE_CAPACITY
            cells = self._cells[start : start + count].tolist()
            self._retired.add(pid, {index: value for index, value in enumerate(cells) if value})
            self._cells[start : start + count] = memoryview(bytes(count * 8)).cast("Q")
            offset = block_offset(block)
            self._shared[offset + 8 : offset + 16] = bytes(8)
            self._shared[offset : offset + 8] = bytes(8)
        self._shared[BLOCKS_EXHAUSTED_OFFSET : BLOCKS_EXHAUSTED_OFFSET + 4] = bytes(4)
