"""The memory that the target and the controller share: every number of its layout.

One sparse memfd, mapped shared by both. Its first part always exists:

    HEADER     one page: who the controller is, where the parts are mapped in the target, the code arenas
    PROBES     one record a probepoint, for `sidestep list` and `sidestep clean`
    LOST       u64 a probe: events that found their ring full
    BLOCKS     16 bytes a block of counters: whose it is
    COUNTERS   BLOCK_COUNT blocks of PROBE_CAPACITY u64 each

The second part, the rings, is appended when the first event is registered: a control page and the ring's
bytes for each ring. In the target a ring's bytes are mapped twice in a row, so that no record wraps there.
There is one ring for each CPU, for many writers, who reserve with a locked instruction; behind them come the
rings of single threads: whoever has counter block FIRST_FREE_BLOCK + N has thread ring N, and reserves there
without a lock, which halves the cost of an event. Threads beyond THREAD_RINGS use the CPUs' rings.

A counter block belongs to one thread, which alone increments it: one `inc` instruction without a lock is
exact, since neither a signal nor another CPU can come between. Process blocks and SHARED_BLOCK have many
writers, who use `lock inc`. The hits of a probe are the sum over all blocks except SCRATCH_BLOCK.

All integers are little-endian. Everything that is read from here was written by the target, so it is checked.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

PAGE_SIZE: Final = 4096
WORD: Final = 8

# Header page
MAGIC: Final = b"SIDESTEP"
VERSION: Final = 2
HEADER_OFFSET: Final = 0
HEADER_SIZE: Final = PAGE_SIZE
BLOCKS_EXHAUSTED_OFFSET: Final = 192  # u32, 1 when a search found no free block; the controller clears it
RECORDS_OFFSET: Final = 196  # u32, one more than the highest index with a probe record, now or before
ARENAS_OFFSET: Final = 512  # {u64 start, u64 size} of each code arena
ARENA_CAPACITY: Final = (HEADER_SIZE - ARENAS_OFFSET) // 16

# Probe table
PROBE_CAPACITY: Final = 65536
PROBES_OFFSET: Final = HEADER_OFFSET + HEADER_SIZE
PROBE_RECORD_SIZE: Final = 256
PROBE_NAME_SIZE: Final = 112
JUMP_SIZE: Final = 5  # jmp rel32
FLAG_HOOK: Final = 1  # the record of a jump of the signal layer: no probe
FLAG_LAST: Final = 2  # it goes when no thread is in code of ours
PROBE_MOVES: Final = 32  # {u8 offset from the site, u16 offset in the buffer} for each instruction boundary
STATE_NONE: Final = 0
STATE_DISABLED: Final = 1  # registered, without a jump
STATE_ARMED: Final = 2

# Counters
LOST_OFFSET: Final = PROBES_OFFSET + PROBE_CAPACITY * PROBE_RECORD_SIZE
BLOCK_COUNT: Final = 256
BLOCK_ENTRY_SIZE: Final = 16
BLOCKS_OFFSET: Final = LOST_OFFSET + PROBE_CAPACITY * 8
COUNTERS_OFFSET: Final = BLOCKS_OFFSET + BLOCK_COUNT * BLOCK_ENTRY_SIZE
COUNTER_BLOCK_SIZE: Final = PROBE_CAPACITY * 8
DATA_SIZE: Final = COUNTERS_OFFSET + BLOCK_COUNT * COUNTER_BLOCK_SIZE

SHARED_BLOCK: Final = 0  # for whoever found no block: attributed to pid 0, `lock inc`
SCRATCH_BLOCK: Final = 1  # takes the unlocked increment of a hit that was counted elsewhere; never summed
FIRST_FREE_BLOCK: Final = 2
# A block entry's first word is pid | kind << 32 (lock cmpxchg from 0), its second the fs base. Nobody
# looks for a block by its pid, so processes that see equal pids (pid namespaces) never share one.
BLOCK_KIND_SHIFT: Final = 32
KIND_FREE: Final = 0
KIND_THREAD: Final = 1
KIND_PROCESS: Final = 2
KIND_RESERVED: Final = 3  # blocks 0 and 1

# Rings, from RINGS_OFFSET on
RINGS_OFFSET: Final = DATA_SIZE
RING_CONTROL_SIZE: Final = PAGE_SIZE
RING_HEAD_OFFSET: Final = 0  # u64, bytes ever reserved; moved by the target
RING_TAIL_OFFSET: Final = 128  # u64, bytes ever consumed; moved by the controller
DEFAULT_RING_SIZE: Final = 4 << 20
SMALLEST_RING_SIZE: Final = 64 << 10
LARGEST_RING_SIZE: Final = 1 << 30
RINGS_BUDGET: Final = 256 << 20  # bytes for all rings together (sparse), unless somebody wants more
THREAD_RINGS: Final = 62  # with two CPUs the budget gives each ring 4 MiB

# Event records
RECORD_MAGIC: Final = 0x5D57
PENDING_MAGIC: Final = 0x5D56  # in place of the magic from reservation to commit
RECORD_HEADER_SIZE: Final = 24  # u16 magic, u16 size / 8, u32 event index, u64 tsc, u32 tid, u32 pid and CPU
RECORD_CPU_SHIFT: Final = 22  # the CPU, modulo 1024, above the pid, which is below 2**22 on Linux
LARGEST_RECORD: Final = 32 << 10  # below half of the smallest ring
DEFAULT_STRING_LIMIT: Final = 256
DEFAULT_STACK_DEPTH: Final = 16

# The process page: private memory of each process, all zero in a forked child (MADV_WIPEONFORK). The first
# slot of the table of threads lies before it, in memory that stays as it is: a zero at fs:0 hashes to that
# slot, and must not match an empty one.
THREAD_SLOT_SIZE: Final = 16  # {u64 fs base, u64 address of the thread's block}
THREAD_TABLE_OFFSET: Final = -THREAD_SLOT_SIZE
THREAD_TABLE_ENTRIES: Final = 1024
THREAD_TABLE_PROBES: Final = 8  # slots that are tried from the hashed one on
FIRST_THREAD_SLOT: Final = b"\xff" * 8 + bytes(8)  # a key that hashes to another slot
PROCESS_BLOCK_OFFSET: Final = (THREAD_TABLE_ENTRIES + THREAD_TABLE_PROBES) * THREAD_SLOT_SIZE
# u64, address of the process's own block, 0 when not claimed yet
PROCESS_PID_OFFSET: Final = PROCESS_BLOCK_OFFSET + 8  # u32, 0 until the first hit
THREAD_HASH_SHIFT: Final = 8  # slot offset = (fs base >> 8) & 0x3ff0
THREAD_HASH_MASK: Final = (THREAD_TABLE_ENTRIES - 1) * THREAD_SLOT_SIZE
THREAD_RESERVED: Final = 1  # as fs base: the slot is taken, its block not known yet
PROCESS_PAGE_SIZE: Final = THREAD_TABLE_ENTRIES * THREAD_SLOT_SIZE + PAGE_SIZE

_HEADER = struct.Struct("<8sIIQQIIIIQQIIIQ")
_ARENA = struct.Struct("<QQ")
_PROBE = struct.Struct(f"<QQQIBBH{JUMP_SIZE}s{JUMP_SIZE}s{PROBE_NAME_SIZE}s{PROBE_MOVES * 3}s")
_MOVE = struct.Struct("<BH")
_COUNT = struct.Struct("<I")
_STATE_OFFSET: Final = 28
assert _PROBE.size <= PROBE_RECORD_SIZE
_BLOCK = struct.Struct("<QQ")

Shared = bytearray | memoryview | mmap.mmap  # a writable view of the memfd


class LayoutError(ValueError):
    """The bytes are not a Sidestep session of this version."""


@dataclass(frozen=True, slots=True)
class Header:
    """The header's fields. Addresses are those in the target; `ring_count` is 0 until the rings exist."""

    controller_pid: int
    controller_start: int  # field 22 of /proc/PID/stat
    target_pid: int
    data_address: int
    file_size: int = DATA_SIZE
    ring_count: int = 0
    ring_size: int = 0
    rings_address: int = 0
    arenas: tuple[Arena, ...] = ()
    hides_contexts: bool = False  # interrupted contexts may wait anywhere in the target's memory
    signal_layer: int = 0  # where the fronts of handlers are; 0: nowhere

    def write(self, shared: Shared) -> None:
        """Writes the header; the magic goes last, so that a reader never takes half of one for a session."""
        if len(self.arenas) > ARENA_CAPACITY:
            raise LayoutError(f"{len(self.arenas)} code arenas, the header has room for {ARENA_CAPACITY}")
        for number, arena in enumerate(self.arenas):
            _ARENA.pack_into(shared, ARENAS_OFFSET + number * _ARENA.size, arena.start, arena.size)
        packed = _HEADER.pack(
            MAGIC,
            VERSION,
            self.controller_pid,
            self.controller_start,
            self.file_size,
            PROBE_CAPACITY,
            BLOCK_COUNT,
            self.ring_count,
            self.ring_size,
            self.data_address,
            self.rings_address,
            self.target_pid,
            len(self.arenas),
            self.hides_contexts,
            self.signal_layer,
        )
        shared[len(MAGIC) : len(packed)] = packed[len(MAGIC) :]
        shared[: len(MAGIC)] = MAGIC

    @classmethod
    def read(cls, shared: bytes | Shared) -> Header:
        """Raises LayoutError for anything but a header of this version whose sizes agree."""
        if len(shared) < HEADER_SIZE:
            raise LayoutError("shorter than a header")
        (
            magic,
            version,
            controller_pid,
            controller_start,
            file_size,
            probe_capacity,
            block_count,
            ring_count,
            ring_size,
            data_address,
            rings_address,
            target_pid,
            arena_count,
            hides_contexts,
            signal_layer,
        ) = _HEADER.unpack_from(shared, 0)
        if magic != MAGIC:
            raise LayoutError("no Sidestep session")
        if version != VERSION:
            raise LayoutError(f"a session of layout version {version}, this is version {VERSION}")
        if probe_capacity != PROBE_CAPACITY or block_count != BLOCK_COUNT or arena_count > ARENA_CAPACITY:
            raise LayoutError("the header's numbers are damaged")
        if ring_count and (
            ring_size & (ring_size - 1) or not SMALLEST_RING_SIZE <= ring_size <= LARGEST_RING_SIZE
        ):
            raise LayoutError("the header's ring size is damaged")
        arenas = tuple(
            Arena(*_ARENA.unpack_from(shared, ARENAS_OFFSET + i * _ARENA.size)) for i in range(arena_count)
        )
        return cls(
            controller_pid,
            controller_start,
            target_pid,
            data_address,
            file_size,
            ring_count,
            ring_size,
            rings_address,
            arenas,
            bool(hides_contexts),
            signal_layer,
        )


class Arena(NamedTuple):
    """A code arena in the target."""

    start: int
    size: int


@dataclass(frozen=True, slots=True)
class ProbeRecord:
    """One probe in the table: enough to list it and to take its jump out without its controller.

    Probes that share a jump have the same `site`, bytes and moves.
    """

    address: int  # the probepoint
    site: int  # where the jump is
    buffer: int  # address of its detour buffer
    state: int  # STATE_NONE, STATE_DISABLED, STATE_ARMED
    original: bytes  # the bytes that the jump replaces
    patched: bytes  # the jump; as long as `original`
    flags: int
    name: str  # MODULE:SYMBOL+0xOFFSET, cut to PROBE_NAME_SIZE bytes of UTF-8
    moves: tuple[tuple[int, int], ...] = ()  # (original address, address of its copy) of each boundary

    def write(self, shared: Shared, index: int) -> None:
        """Writes the record at `index`. Indexes below may have none: some probes have two counters."""
        if len(self.original) != len(self.patched) or len(self.original) > JUMP_SIZE:
            raise LayoutError(f"{len(self.original)} original and {len(self.patched)} patched bytes")
        if not moves_fit(self.site, self.buffer, self.moves):
            raise LayoutError(f"a record has no room for these {len(self.moves)} boundaries")
        name = self.name.encode("utf-8", "replace")[:PROBE_NAME_SIZE].decode("utf-8", "ignore").encode()
        moves = b"".join(_MOVE.pack(old - self.site, new - self.buffer) for old, new in self.moves)
        if index >= record_count(shared):
            _COUNT.pack_into(shared, RECORDS_OFFSET, index + 1)
        _PROBE.pack_into(
            shared,
            probe_offset(index),
            self.address,
            self.site,
            self.buffer,
            self.flags,
            self.state,
            len(self.original),
            len(self.moves),
            self.original,
            self.patched,
            name,
            moves,
        )

    @classmethod
    def read(cls, shared: bytes | Shared, index: int) -> ProbeRecord | None:
        """The record at `index`, or None when the place is empty or damaged."""
        start = probe_offset(index)
        return cls.parse(shared[start : start + PROBE_RECORD_SIZE])

    @classmethod
    def parse(cls, raw: bytes | bytearray | memoryview) -> ProbeRecord | None:
        """The record that `raw` holds, or None when it is empty or damaged."""
        address, site, buffer, flags, state, length, count, original, patched, name, moves = (
            _PROBE.unpack_from(raw)
        )
        if state not in (STATE_DISABLED, STATE_ARMED) or length > JUMP_SIZE or count > PROBE_MOVES:
            return None
        text = name.split(b"\0", 1)[0].decode("utf-8", "replace")
        pairs = tuple(
            (site + old, buffer + new) for old, new in _MOVE.iter_unpack(moves[: count * _MOVE.size])
        )
        return cls(address, site, buffer, state, original[:length], patched[:length], flags, text, pairs)


def moves_fit(site: int, buffer: int, moves: Sequence[tuple[int, int]]) -> bool:
    """Whether a record has room for these boundaries."""
    return len(moves) <= PROBE_MOVES and all(
        0 <= old - site < 1 << 8 and 0 <= new - buffer < 1 << 16 for old, new in moves
    )


class BlockEntry(NamedTuple):
    """Whose a block of counters is. `fs_base` is 0 for a block that a whole process uses."""

    pid: int  # as the process itself sees it (in its pid namespace)
    kind: int
    fs_base: int


def read_block_entry(shared: bytes | Shared, block: int) -> BlockEntry:
    word, fs_base = _BLOCK.unpack_from(shared, block_offset(block))
    return BlockEntry(word & 0xFFFFFFFF, word >> BLOCK_KIND_SHIFT & 3, fs_base)


def initialise(shared: Shared) -> None:
    """Prepares the blocks of a new memfd (all zero); call it before the target can see the memory."""
    for block in (SHARED_BLOCK, SCRATCH_BLOCK):
        _BLOCK.pack_into(shared, block_offset(block), KIND_RESERVED << BLOCK_KIND_SHIFT, 0)


def record_count(header: bytes | Shared) -> int:
    """How many places of the table may hold a record."""
    count: int = _COUNT.unpack_from(header, RECORDS_OFFSET)[0]
    return min(count, PROBE_CAPACITY)


def set_probe_state(shared: Shared, index: int, state: int) -> None:
    """Changes only the state byte of a probe's record: one store, complete or not done."""
    shared[probe_offset(index) + _STATE_OFFSET] = state


def probe_offset(index: int) -> int:
    _check(index, PROBE_CAPACITY, "probe index")
    return PROBES_OFFSET + index * PROBE_RECORD_SIZE


def last_fault_offset(index: int) -> int:
    """The word for a handler's last fault: what its faults are counted by is no event, so loses none."""
    return lost_offset(index)


def lost_offset(index: int) -> int:
    _check(index, PROBE_CAPACITY, "probe index")
    return LOST_OFFSET + index * 8


def block_offset(block: int) -> int:
    _check(block, BLOCK_COUNT, "block")
    return BLOCKS_OFFSET + block * BLOCK_ENTRY_SIZE


def counter_offset(block: int, index: int) -> int:
    _check(block, BLOCK_COUNT, "block")
    _check(index, PROBE_CAPACITY, "probe index")
    return COUNTERS_OFFSET + block * COUNTER_BLOCK_SIZE + index * 8


def ring_count_for(cpus: int) -> int:
    """All rings of a machine with that many (possible) CPUs: theirs, and those of threads."""
    return cpus + THREAD_RINGS


def thread_ring(block: int, cpus: int) -> int | None:
    """The number of the ring that goes with a counter block, if one does."""
    number = block - FIRST_FREE_BLOCK
    return cpus + number if 0 <= number < THREAD_RINGS else None


def ring_size_for(ring_count: int, wanted: int | None = None) -> int:
    """Bytes of one ring, a power of two: `wanted` (64 KiB .. 1 GiB), else what the budget allows."""
    if wanted is not None:
        return min(max(SMALLEST_RING_SIZE, 1 << (wanted - 1).bit_length()), LARGEST_RING_SIZE)
    share = 1 << (RINGS_BUDGET // max(ring_count, 1)).bit_length() - 1
    return max(SMALLEST_RING_SIZE, min(DEFAULT_RING_SIZE, share))


def ring_offset(ring: int, ring_size: int) -> int:
    """File offset of a ring's control page; its bytes follow."""
    return RINGS_OFFSET + ring * (RING_CONTROL_SIZE + ring_size)


def file_size(ring_count: int, ring_size: int) -> int:
    """Size of the whole file with that many rings."""
    return ring_offset(ring_count, ring_size)


def ring_stride(ring_size: int) -> int:
    """Bytes from one ring to the next in the target: control page, the ring's bytes, the same bytes again."""
    return RING_CONTROL_SIZE + 2 * ring_size


class RingMapping(NamedTuple):
    """One mapping that the target needs: `offset` from the start of the rings' address range there."""

    offset: int
    size: int
    file_offset: int


def ring_mappings(ring_count: int, ring_size: int) -> list[RingMapping]:
    """The mappings of all rings, two for each: control page with the bytes, then the bytes again."""
    mappings: list[RingMapping] = []
    for ring in range(ring_count):
        start, in_file = ring * ring_stride(ring_size), ring_offset(ring, ring_size)
        mappings.append(RingMapping(start, RING_CONTROL_SIZE + ring_size, in_file))
        mappings.append(
            RingMapping(start + RING_CONTROL_SIZE + ring_size, ring_size, in_file + RING_CONTROL_SIZE)
        )
    return mappings


def _check(number: int, limit: int, name: str) -> None:
    if not 0 <= number < limit:
        raise LayoutError(f"{name} {number} is not below {limit}")
