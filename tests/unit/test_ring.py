"""Reading rings: whatever is committed arrives once, in order; whatever else is there does no harm."""

from __future__ import annotations

import mmap
import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidestep.events import layout
from sidestep.events.clock import Clock
from sidestep.events.decode import EventDecoder
from sidestep.events.layout import PENDING_MAGIC, RECORD_MAGIC, RING_CONTROL_SIZE
from sidestep.events.reader import EventReader
from sidestep.events.record import EventProgram
from sidestep.events.ring import RecordShape, Ring
from sidestep.spec import parse

SIZE = layout.SMALLEST_RING_SIZE
WORDS = {1: 3, 2: 5, 3: 40, 4: 601}  # words of the records of four events
WORD = (1 << 64) - 1


def header_word(event: int, magic: int = RECORD_MAGIC) -> int:
    return magic | WORDS[event] << 16 | event << 32


SHAPES = {header_word(event): RecordShape(event, 8 * words) for event, words in WORDS.items()}


class Writer:
    """What the target does to a ring."""

    def __init__(self, shared: memoryview, number: int = 0, size: int = SIZE) -> None:
        start = layout.ring_offset(number, size)
        self.size = size
        self.control = shared[start : start + RING_CONTROL_SIZE].cast("Q")
        self.words = shared[start + RING_CONTROL_SIZE : start + RING_CONTROL_SIZE + size].cast("Q")

    def reserve(self, words: int) -> int | None:
        head, tail = self.control[0], self.control[16]
        if head + 8 * words - tail > self.size:
            return None
        self.control[0] = head + 8 * words
        for number in range(words):
            assert self.words[(head // 8 + number) % len(self.words)] == 0, (
                "a span is zero when it is reserved"
            )
        return head // 8

    def put(self, position: int, word: int) -> None:
        self.words[position % len(self.words)] = word

    def commit(self, position: int, event: int, serial: int) -> None:
        for number in range(1, WORDS[event]):
            self.put(position + number, serial)
        self.put(position, header_word(event))

    def write(self, event: int, serial: int) -> bool:
        position = self.reserve(WORDS[event])
        if position is not None:
            self.commit(position, event, serial)
        return position is not None


_MEMORY = memoryview(mmap.mmap(-1, layout.file_size(3, SIZE)))


def empty_memory(rings: int = 1) -> memoryview:
    """The shared memory with that many rings, all zero."""
    size = layout.file_size(rings, SIZE)
    _MEMORY[layout.RINGS_OFFSET : size] = bytes(size - layout.RINGS_OFFSET)
    return _MEMORY[:size]


@pytest.fixture
def shared() -> memoryview:
    return empty_memory()


def taken(ring: Ring, **options: bool) -> list[tuple[int, int]]:
    """(event, serial) of each record, whose words must all be the serial."""
    found: list[tuple[int, int]] = []
    for run in ring.take(SHAPES, **options):
        size = 8 * WORDS[run.event]
        assert len(run.data) == run.records * size
        for start in range(0, len(run.data), size):
            words = struct.unpack(f"<{WORDS[run.event]}Q", run.data[start : start + size])
            assert words[0] == header_word(run.event)
            assert len(set(words[1:])) == 1
            found.append((run.event, words[1]))
    return found


@pytest.mark.parametrize("events", [(1,), (2,), (4,), (1, 2), (1, 1, 1, 1, 1, 1, 1, 2), (3, 1, 4, 2)])
def test_records_arrive_once_and_in_order(shared: memoryview, events: tuple[int, ...]) -> None:
    writer, ring = Writer(shared), Ring(shared, 0, SIZE)
    written, read, serial = [], [], 0
    for round_ in range(30):
        for _ in range(200 * round_):
            serial += 1
            event = events[serial % len(events)]
            if writer.write(event, serial):
                written.append((event, serial))
        read += taken(ring)
        assert ring.drained
    assert read == written
    assert ring.damaged == ring.holes == 0


operations = st.lists(
    st.tuples(st.sampled_from(["write", "reserve", "commit", "take", "begin"]), st.integers(1, 4)),
    max_size=300,
)


@settings(deadline=None, max_examples=150)
@given(operations, st.integers(0, 1 << 20))
def test_any_order_of_reserving_committing_and_reading(steps: list[tuple[str, int]], start: int) -> None:
    """A ring model: what is behind a record that is not committed waits; nothing is lost or invented."""
    shared = empty_memory()
    control = shared[layout.ring_offset(0, SIZE) :][:RING_CONTROL_SIZE].cast("Q")
    control[0] = control[16] = 8 * start
    writer, ring = Writer(shared), Ring(shared, 0, SIZE)
    order: list[tuple[int, int]] = []  # as reserved
    open_: dict[int, tuple[int, int]] = {}  # serial -> event, position
    read: list[tuple[int, int]] = []
    for serial, (step, event) in enumerate(steps, 1):
        if step == "take":
            read += taken(ring)
        elif step == "commit":
            if open_:
                oldest = next(iter(open_))
                writer.commit(open_[oldest][1], open_[oldest][0], oldest)
                del open_[oldest]
        else:
            position = writer.reserve(WORDS[event])
            if position is None:
                continue
            order.append((event, serial))
            if step == "write":
                writer.commit(position, event, serial)
                continue
            open_[serial] = (event, position)
            if step == "begin":
                writer.put(position, header_word(event, PENDING_MAGIC))
    read += taken(ring)
    waiting = next((number for number, (_, serial) in enumerate(order) if serial in open_), len(order))
    assert read == order[:waiting]
    assert ring.drained == (waiting == len(order))
    for serial, (event, position) in open_.items():
        writer.commit(position, event, serial)
    read += taken(ring)
    assert read == order
    assert ring.damaged == ring.holes == 0


@pytest.mark.parametrize("begun", [True, False])
def test_holes_are_skipped_when_told_so(shared: memoryview, begun: bool) -> None:
    writer, ring = Writer(shared), Ring(shared, 0, SIZE)
    expected, holes = [], 0
    source = random.Random(5)
    for serial in range(1, 200):
        event = source.randrange(1, 4)
        if source.random() < 0.1:
            position = writer.reserve(WORDS[event])
            assert position is not None
            if begun:
                writer.put(position, header_word(event, PENDING_MAGIC))
            writer.put(position + 1, serial)
            holes += 1
        elif writer.write(event, serial):
            expected.append((event, serial))
    before = taken(ring)
    assert not ring.drained
    assert before == expected[: len(before)]
    assert before + taken(ring, skip_holes=True) == expected
    assert ring.drained
    assert ring.damaged == 0
    assert ring.holes == holes if begun else 0 < ring.holes <= holes
    assert writer.write(1, 1000)
    assert taken(ring) == [(1, 1000)]


def test_garbage_is_passed_over(shared: memoryview) -> None:
    writer, ring = Writer(shared), Ring(shared, 0, SIZE)
    for serial in range(1, 20):
        writer.write(2, serial)
        position = writer.reserve(6)
        assert position is not None
        for number in range(6):
            writer.put(position + number, 0xDEAD_BEEF_0000 + number)
    assert taken(ring) == [(2, serial) for serial in range(1, 20)]
    assert ring.damaged == 19


@pytest.mark.parametrize("head", [8, SIZE + 72, 1 << 63, WORD, WORD - 7, 12345, SIZE * 2])
def test_an_impossible_head_empties_the_ring(shared: memoryview, head: int) -> None:
    writer = Writer(shared)
    writer.control[0] = writer.control[16] = 64
    ring = Ring(shared, 0, SIZE)
    writer.write(1, 1)
    writer.control[0] = head
    assert taken(ring) == []
    assert ring.damaged == 1
    assert not any(writer.words)
    writer.control[0] = writer.control[16] if head < 1 << 63 else 0
    assert taken(ring) == []
    assert writer.write(3, 7)
    assert taken(ring) == [(3, 7)]


def test_the_tail_in_the_shared_memory_is_not_believed(shared: memoryview) -> None:
    writer, ring = Writer(shared), Ring(shared, 0, SIZE)
    writer.write(1, 1)
    writer.control[16] = 24
    assert taken(ring) == [(1, 1)]
    writer.control[16] = 0
    writer.write(1, 2)
    assert taken(ring) == [(1, 2)]


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=4096), st.integers(0, SIZE), st.booleans(), st.integers(0, SIZE // 8))
def test_no_content_does_any_harm(content: bytes, used: int, skip_holes: bool, start: int) -> None:
    """Random words, some of them headers: take() comes to an end and the ring can be used afterwards."""
    shared = empty_memory()
    writer = Writer(shared)
    writer.control[0] = writer.control[16] = 8 * start
    ring = Ring(shared, 0, SIZE)
    source = random.Random(content)
    for number in range(len(writer.words)):
        if source.random() < 0.2:
            writer.put(number, source.choice((header_word(source.randrange(1, 5)), source.getrandbits(64))))
    for number, byte in enumerate(content):
        writer.put(number * 3, byte << 8 * (number % 8))
    writer.control[0] += used & ~7
    runs = ring.take(SHAPES, skip_holes=skip_holes)
    assert sum(len(run.data) for run in runs) <= used
    runs = ring.take(SHAPES, skip_holes=True)
    assert ring.drained
    position = writer.control[0]
    for number in range(len(writer.words)):
        writer.put(number, 0)
    assert writer.write(2, 9)
    assert writer.control[0] == position + 8 * WORDS[2]
    assert taken(ring) == [(2, 9)]


def test_a_ring_that_is_not_in_the_memory_is_refused(shared: memoryview) -> None:
    with pytest.raises(IndexError):
        Ring(shared, 1, SIZE)


# All rings together


class Ticks:
    """A tsc that the test moves."""

    def __init__(self) -> None:
        self.now = 1000

    def __call__(self) -> int:
        self.now += 1
        return self.now


def clock_of(ticks: Ticks) -> Clock:
    """A tick is a millisecond, so that the clock's own first look is short."""
    return Clock(ticks, lambda: ticks.now * 1_000_000)


def put_event(writer: Writer, program: EventProgram, tsc: int, commit: bool = True) -> int:
    shape = program.format
    position = writer.reserve(shape.size // 8)
    assert position is not None
    writer.put(position, shape.header_word(program.index, PENDING_MAGIC))
    writer.put(position + 1, tsc)
    writer.put(position + 2, 5 | 6 << 32)
    if commit:
        writer.put(position, shape.header_word(program.index))
    return position


def test_events_of_all_cpus_come_in_the_order_of_time() -> None:
    rings, program = 3, EventProgram(4, "event", "f+0x0")
    shared = empty_memory(rings)
    ticks = Ticks()
    reader = EventReader(shared, rings, SIZE, clock_of(ticks))
    reader.add([EventDecoder(program)])
    writers = [Writer(shared, number) for number in range(rings)]
    source = random.Random(6)
    got: list[int] = []
    written = 0
    for _ in range(40):
        for _ in range(source.randrange(50)):
            ticks.now += 2
            put_event(source.choice(writers), program, ticks.now)
            written += 1
        events = reader.poll()
        got += [event.tsc for event in events]
    got += [event.tsc for event in reader.flush()]
    assert got == sorted(got)
    assert len(got) == written == reader.delivered[4]


def test_what_may_still_be_overtaken_waits() -> None:
    program = EventProgram(4, "event", "f+0x0")
    shared = empty_memory(2)
    ticks = Ticks()
    reader = EventReader(shared, 2, SIZE, clock_of(ticks))
    reader.add([EventDecoder(program)])
    first, second = Writer(shared, 0), Writer(shared, 1)
    reader.poll()
    position = put_event(first, program, 0, commit=False)
    early = ticks.now = ticks.now + 10
    put_event(second, program, ticks.now + 5)
    ticks.now += 100
    assert reader.poll() == []
    assert not reader.drained
    first.put(position + 1, early)
    first.put(position, program.format.header_word(4))
    assert [event.tsc for event in reader.poll()] == [early, early + 5]
    assert reader.drained


def test_a_time_in_the_future_is_not_believed() -> None:
    program = EventProgram(4, "event", "f+0x0")
    shared = empty_memory()
    reader = EventReader(shared, 1, SIZE, clock_of(Ticks()))
    reader.add([EventDecoder(program)])
    put_event(Writer(shared), program, WORD)
    assert len(reader.poll()) == 1


def test_the_records_of_a_removed_event_are_damage() -> None:
    program = EventProgram(4, "event", "f+0x0", parse("p f a=$arg1").arguments)
    shared = empty_memory()
    reader = EventReader(shared, 1, SIZE, clock_of(Ticks()))
    reader.add([EventDecoder(program)])
    writer = Writer(shared)
    put_event(writer, program, 1)
    assert len(reader.flush()) == 1
    reader.remove([4])
    put_event(writer, program, 2)
    assert reader.flush() == []
    assert reader.damaged == 1
