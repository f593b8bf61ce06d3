"""The shared memory's layout: what is written is read back, and damage is recognised."""

from __future__ import annotations

import dataclasses
import itertools
import random

import pytest

from sidestep.events import layout
from sidestep.events.layout import Arena, Header, LayoutError, ProbeRecord

HEADER = Header(
    controller_pid=10,
    controller_start=123456789012,
    target_pid=11,
    data_address=0x7F00_0000_0000,
    file_size=layout.file_size(2, 1 << 20),
    ring_count=2,
    ring_size=1 << 20,
    rings_address=0x7E00_0000_0000,
    arenas=(Arena(0x1000, 0x2000), Arena(0x5000, 0x1000)),
)
RECORD = ProbeRecord(
    address=0x401003,
    site=0x401000,
    buffer=0x501000,
    state=layout.STATE_ARMED,
    original=b"\x55\x48\x89\xe5\x90",
    patched=b"\xe9\x01\x02\x03\x04",
    flags=0,
    name="libc:malloc+0x3",
    moves=((0x401000, 0x501040), (0x401003, 0x501043)),
)


def test_parts_follow_one_another() -> None:
    parts = [
        (layout.HEADER_OFFSET, layout.HEADER_SIZE),
        (layout.PROBES_OFFSET, layout.PROBE_CAPACITY * layout.PROBE_RECORD_SIZE),
        (layout.LOST_OFFSET, layout.PROBE_CAPACITY * 8),
        (layout.BLOCKS_OFFSET, layout.BLOCK_COUNT * layout.BLOCK_ENTRY_SIZE),
        (layout.COUNTERS_OFFSET, layout.BLOCK_COUNT * layout.COUNTER_BLOCK_SIZE),
        (layout.RINGS_OFFSET, 0),
    ]
    for (start, size), (following, _) in itertools.pairwise(parts):
        assert start + size == following
        assert following % layout.PAGE_SIZE == 0
    assert layout.ARENAS_OFFSET + layout.ARENA_CAPACITY * 16 <= layout.HEADER_SIZE


def test_a_header_is_read_back() -> None:
    shared = bytearray(layout.HEADER_SIZE)
    HEADER.write(shared)
    assert Header.read(shared) == HEADER


@pytest.mark.parametrize("change", [slice(0, 1), slice(8, 12), slice(32, 36), slice(36, 40), slice(44, 48)])
def test_a_damaged_header_is_refused(change: slice) -> None:
    shared = bytearray(layout.HEADER_SIZE)
    HEADER.write(shared)
    shared[change] = b"\xff" * (change.stop - change.start)
    with pytest.raises(LayoutError):
        Header.read(shared)


def test_no_bytes_make_reading_a_header_fail_otherwise() -> None:
    source = random.Random(1)
    shared = bytearray(layout.HEADER_SIZE)
    HEADER.write(shared)
    for _ in range(2000):
        damaged = bytearray(shared)
        for _ in range(source.randrange(1, 5)):
            damaged[source.randrange(96)] = source.randrange(256)
        try:
            header = Header.read(damaged)
        except LayoutError:
            continue
        assert len(header.arenas) <= layout.ARENA_CAPACITY
    with pytest.raises(LayoutError):
        Header.read(shared[:100])


def test_too_many_arenas_are_refused() -> None:
    arenas = tuple(Arena(number, 1) for number in range(layout.ARENA_CAPACITY + 1))
    with pytest.raises(LayoutError, match="room for"):
        dataclasses.replace(HEADER, arenas=arenas).write(bytearray(layout.HEADER_SIZE))


def test_a_probe_record_is_read_back() -> None:
    shared = bytearray(layout.LOST_OFFSET)
    RECORD.write(shared, 7)
    assert ProbeRecord.read(shared, 7) == RECORD
    assert ProbeRecord.read(shared, 6) is None
    layout.set_probe_state(shared, 7, layout.STATE_DISABLED)
    assert ProbeRecord.read(shared, 7) == dataclasses.replace(RECORD, state=layout.STATE_DISABLED)
    layout.set_probe_state(shared, 7, layout.STATE_NONE)
    assert ProbeRecord.read(shared, 7) is None


def test_a_long_name_is_cut_between_characters() -> None:
    shared = bytearray(layout.LOST_OFFSET)
    dataclasses.replace(RECORD, name="€" * 100).write(shared, 0)
    record = ProbeRecord.read(shared, 0)
    assert record is not None
    assert record.name == "€" * (layout.PROBE_NAME_SIZE // 3)


def test_no_bytes_make_reading_a_record_fail() -> None:
    source = random.Random(2)
    for _ in range(2000):
        raw = bytearray(source.randbytes(layout.PROBE_RECORD_SIZE))
        raw[28] = source.choice((0, 1, 2, 3, 255))
        ProbeRecord.parse(raw)


@pytest.mark.parametrize("index", [-1, layout.PROBE_CAPACITY])
def test_indexes_are_checked(index: int) -> None:
    for offset in (layout.probe_offset, layout.lost_offset):
        with pytest.raises(LayoutError):
            offset(index)


@pytest.mark.parametrize(
    ("rings", "wanted", "size"),
    [
        (1, None, 4 << 20),
        (16, None, 4 << 20),
        (128, None, 2 << 20),
        (8192, None, layout.SMALLEST_RING_SIZE),
        (2, 100_000, 128 << 10),
        (2, 1, layout.SMALLEST_RING_SIZE),
        (2, 1 << 40, layout.LARGEST_RING_SIZE),
    ],
)
def test_ring_sizes(rings: int, wanted: int | None, size: int) -> None:
    assert layout.ring_size_for(rings, wanted) == size


def test_all_rings_together_stay_within_the_budget() -> None:
    for cpus in (1, 2, 8, 64, 256):
        rings = layout.ring_count_for(cpus)
        assert rings * layout.ring_size_for(rings) <= layout.RINGS_BUDGET
    assert layout.ring_size_for(layout.ring_count_for(2)) == 4 << 20


def test_a_ring_is_mapped_twice_behind_its_control_page() -> None:
    size = 1 << 20
    first, again, *_ = layout.ring_mappings(3, size)
    assert (first.offset, first.size) == (0, layout.RING_CONTROL_SIZE + size)
    assert (again.offset, again.size) == (layout.RING_CONTROL_SIZE + size, size)
    assert again.file_offset == first.file_offset + layout.RING_CONTROL_SIZE
    last = layout.ring_mappings(3, size)[-1]
    assert last.offset + last.size == 3 * layout.ring_stride(size)
    assert last.file_offset + last.size == layout.file_size(3, size)
