"""Reading the counters: the hits of each probe, in all and by process.

Counters only grow. A hit is in exactly one block, so a sum over the blocks is exact once nobody counts any
more, and never too high before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import add

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


class Counters:
    """The counters in a mapping of the shared memory. To read them disturbs nobody."""

    def __init__(self, shared: memoryview) -> None:
        self._shared = shared
        self._cells = shared[COUNTERS_OFFSET:DATA_SIZE].cast("Q")
        self._entries = shared[BLOCKS_OFFSET : block_offset(BLOCK_COUNT - 1) + BLOCK_ENTRY_SIZE].cast("Q")
        self._lost = shared[LOST_OFFSET : LOST_OFFSET + PROBE_CAPACITY * 8].cast("Q")
        self._fixed: list[tuple[int, BlockEntry]] | None = None
        self._retired: dict[int, list[int]] = {}  # pid -> hits by probe index, of blocks that were taken back

    def close(self) -> None:
        """Lets go of the mapping."""
        self._cells.release()
        self._entries.release()
        self._lost.release()

    def blocks(self) -> list[tuple[int, BlockEntry]]:
        """The blocks in use, with their numbers; those of threads and processes that have ended, too."""
        if self._fixed is not None:
            return self._fixed
        # Most entries are zero; asked for each probe, this must not take apart all of them.
        used = [block for block, word in enumerate(self._entries.tolist()[::2]) if word]
        entries = ((block, read_block_entry(self._shared, block)) for block in used)
        return [
            (block, entry) for block, entry in entries if entry.kind != KIND_FREE and block != SCRATCH_BLOCK
        ]

    @contextmanager
    def fixed_blocks(self) -> Iterator[None]:
        """Within the `with`, look for blocks only once: for many probes that nobody counts any more."""
        self._fixed = self.blocks()
        try:
            yield
        finally:
            self._fixed = None

    def totals(self, count: int) -> list[int]:
        """The hits of the probes with the indexes 0 .. `count` - 1."""
        sums = [0] * count
        for cells in self._retired.values():
            sums[: len(cells)] = map(add, sums, cells[:count])
        for block, _ in self.blocks():
            start = block * PROBE_CAPACITY
            sums = list(map(add, sums, self._cells[start : start + count].tolist()))
        return sums

    def total(self, index: int) -> int:
        return sum(self.by_pid(index).values())

    def by_pid(self, index: int) -> Counter[int]:
        """The hits of a probe by pid, as the process itself sees it; pid 0: what found no block."""
        hits: Counter[int] = Counter()
        for pid, cells in self._retired.items():
            hits[pid] += cells[index] if index < len(cells) else 0
        for block, entry in self.blocks():
            hits[entry.pid] += self._cells[block * PROBE_CAPACITY + index]
        return +hits

    def lost(self, index: int) -> int:
        """Events of a probe that found their ring full."""
        return self._lost[index]

    def clear(self, index: int) -> None:
        """Sets a probe's counters to zero, for a new probe: only when no thread can be counting it."""
        self._lost[index] = 0
        for cells in self._retired.values():
            if index < len(cells):
                cells[index] = 0
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
        settled before (EventReader.settle), since their next owners write on where the last ones stopped.
        """
        for block, entry in self.blocks():
            if entry.pid != pid or block < FIRST_FREE_BLOCK:
                continue
            start = block * PROBE_CAPACITY
            cells = self._cells[start : start + count].tolist()
            kept = self._retired.get(pid, [])
            kept += [0] * (count - len(kept))
            self._retired[pid] = list(map(add, kept, cells + [0] * (len(kept) - count)))
            self._cells[start : start + count] = memoryview(bytes(count * 8)).cast("Q")
            offset = block_offset(block)
            self._shared[offset + 8 : offset + 16] = bytes(8)
            self._shared[offset : offset + 8] = bytes(8)
        self._shared[BLOCKS_EXHAUSTED_OFFSET : BLOCKS_EXHAUSTED_OFFSET + 4] = bytes(4)
