"""Decoding records, printing events, the clock, and the sums of counters."""

from __future__ import annotations

import io
import json
import mmap
import struct
import time

import pytest

from sidestep.errors import ProbeError
from sidestep.events import layout
from sidestep.events.clock import Clock, TscReader
from sidestep.events.counters import Counters
from sidestep.events.decode import FAULT, Event, EventDecoder, Text
from sidestep.events.record import EventProgram, Field
from sidestep.events.retired import Retired
from sidestep.events.sinks import JsonSink, TextSink, escape, format_value
from sidestep.spec import parse

WORD = (1 << 64) - 1
TIME = 12.345678


def program(text: str, **options: object) -> EventProgram:
    spec = parse(f"p:grp/ev f {text}".strip())
    return EventProgram(3, "ev", "f+0x4", spec.arguments, address=0x1000, **options)  # type: ignore[arg-type]


def record(of: EventProgram, *contents: bytes, faults: int = 0, stack: tuple[int, ...] = ()) -> bytes:
    """A record whose fields hold `contents`, padded with zeros."""
    shape = of.format
    data = struct.pack("<QQII", shape.header_word(of.index), 99, 21, 20 | 1 << 22)
    data += faults.to_bytes(8 * shape.fault_words, "little")
    for field, content in zip(shape.fields, contents, strict=True):
        data += content.ljust(field.size, b"\0")
    data += b"".join(address.to_bytes(8, "little") for address in stack).ljust(8 * shape.stack_depth, b"\0")
    assert len(data) == shape.size
    return data


def decoded(of: EventProgram, data: bytes) -> Event:
    decoder = EventDecoder(of, lambda address: f"sym+{address:#x}")
    (raw,) = decoder.unpack(data)
    return Event(decoder, raw, TIME)


def number(value: int) -> bytes:
    return (value & WORD).to_bytes(8, "little")


def text_of(content: bytes) -> bytes:
    return number(len(content)) + content


@pytest.mark.parametrize(
    ("kind", "word", "value"),
    [
        ("u8", 0x1FF, 0xFF),
        ("s8", 0x1FF, -1),
        ("s8", 0x7F, 127),
        ("u16", -1, 0xFFFF),
        ("s16", 0x8000, -0x8000),
        ("u32", -1, 0xFFFF_FFFF),
        ("s32", 0xFFFF_FFFF, -1),
        ("x32", 0x1_0000_0001, 1),
        ("u64", -1, WORD),
        ("s64", -1, -1),
        ("x64", -1, WORD),
        ("b5@3/16", 0b1010_1000, 0b10101),
        ("b64@0/64", -1, WORD),
        ("symbol", 0x40, "sym+0x40"),
    ],
)
def test_numbers_are_cut_by_their_type(kind: str, word: int, value: object) -> None:
    of = program(f"v=%ax:{kind}")
    assert decoded(of, record(of, number(word))).args == {"v": value}


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b"abc\0\xff\xff", "abc"),
        (b"\0", ""),
        (b"1234567\0", "1234567"),
        (b"12345678\0", "12345678"),
        (b"123456789", "12345678"),
        (b"1234", FAULT),
        (b"12345678", FAULT),
        (b"", FAULT),
        (b"\xc3\xa9\xff\0", "é\\xff"),
    ],
)
def test_strings(content: bytes, value: object) -> None:
    of = program("s=+0(%ax):string", string_limit=8)
    found = decoded(of, record(of, text_of(content))).args["s"]
    assert found == value
    if isinstance(found, Text):
        assert found.raw == content.split(b"\0")[0][:8]
        assert found.truncated == (content == b"123456789")
        assert found.is_utf8 == (b"\xff" not in found.raw)


def test_a_length_that_is_a_lie() -> None:
    of = program("s=+0(%ax):string t=%ax", string_limit=8)
    data = record(of, number(WORD) + b"a" * 16, number(5))
    assert decoded(of, data).args == {"s": "aaaaaaaa", "t": 5}


def test_arrays_comm_faults_and_stack() -> None:
    of = program("a=+0(%ax):s16[3] b=+0(%bx) c=$comm d=$stack1:u8 e=%ax", stack_depth=4)
    data = record(
        of, struct.pack("<3h", -1, 2, -3), number(1), b"a name\0rest", number(0x105), number(7),
        faults=0b010, stack=(0x1000, 0x2000),
    )  # fmt: skip
    found = decoded(of, data)
    assert found.args == {"a": [-1, 2, -3], "b": FAULT, "c": "a name", "d": 5, "e": 7}
    assert found.stack == [0x1000, 0x2000]
    assert found.stack_symbols == ["sym+0x1000", "sym+0x2000"]
    assert (found.tid, found.pid, found.cpu, found.tsc, found.time) == (21, 20, 1, 99, TIME)
    assert not FAULT
    assert str(FAULT) == "(fault)"


def test_more_fields_that_can_fault_than_a_word_has_bits() -> None:
    of = program(" ".join(f"v{number}=+0(%ax)" for number in range(100)))
    assert of.format.fault_words == 2
    found = decoded(of, record(of, *[number(5)] * 100, faults=1 << 70 | 1))
    faulted = [name for name, value in found.args.items() if value is FAULT]
    assert faulted == ["v0", "v70"]


def test_a_string_limit_beyond_a_page_is_refused() -> None:
    for limit in (0, layout.PAGE_SIZE):
        with pytest.raises(ProbeError, match="strings have"):
            _ = program("s=+0(%ax):string", string_limit=limit).format


# Printing


def lines(events: list[Event]) -> list[str]:
    file = io.StringIO()
    TextSink(file, lambda pid, tid: "bash" if tid == 21 else "").write(events)
    return file.getvalue().splitlines()


def test_a_line_is_like_the_kernels() -> None:
    of = program("a=%ax b=%bx:s32 c=%cx:u8 d=+0(%dx):string e=+0(%si):x8[2] f=%di:symbol g=+0(%ax)")
    data = record(
        of, number(0x1234), number(-5), number(7), text_of(b'say "hi"\\\0'), b"\x0a\xff",
        number(0x40), number(0), faults=0b100,
    )  # fmt: skip
    assert lines([decoded(of, data)]) == [
        "            bash-21      [001] 12.345678: ev: (f+0x4)"
        ' a=0x1234 b=-5 c=7 d="say \\"hi\\"\\\\" e={0xa,0xff} f=sym+0x40 g=(fault)'
    ]


def test_a_stack_follows_its_event() -> None:
    of = program("", stack_depth=3)
    assert lines([decoded(of, record(of, stack=(0x10, 0x20)))])[1:] == [
        "   <stack trace>",
        " => sym+0x10",
        " => sym+0x20",
    ]


def test_a_thread_without_a_name() -> None:
    of = program("")
    data = bytearray(record(of))
    data[16] = 9
    assert lines([decoded(of, bytes(data))])[0].startswith("           <...>-9 ")


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("\x1b[2J", "\\x1b[2J"),
        ("a\nb\tc\rd", "a\\nb\\tc\\rd"),
        ("\x9b1m\x7f\x00", "\\u009b1m\\x7f\\x00"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\u2028\ufeff\udc80", "\\u2028\\ufeff\\x80"),
        ("\u061c\U000e0041", "\\u061c\\U000e0041"),
        ("naïve 日本", "naïve 日本"),
    ],
)
def test_nothing_of_the_target_reaches_a_terminal_raw(hostile: str, shown: str) -> None:
    assert escape(hostile) == shown
    of = program("s=+0(%ax):string c=$comm")
    content = hostile.encode("utf-8", "surrogatepass").replace(b"\0", b"") + b"\0"
    data = record(of, text_of(content), content[:16])
    (line,) = lines([decoded(of, data)])
    assert escape(line) == line
    file = io.StringIO()
    JsonSink(file).write([decoded(of, data)])
    assert escape(file.getvalue().rstrip("\n")) == file.getvalue().rstrip("\n")
    assert len(file.getvalue().splitlines()) == 1


def test_a_string_that_was_cut_is_marked_behind_its_quote() -> None:
    of = program("s=+0(%ax):string", string_limit=4)
    assert lines([decoded(of, record(of, text_of(b"12345")))])[0].endswith(' s="1234"...')


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b"na\xefve", r"na\xefve"),
        (rb"na\xefve", r"na\\xefve"),
        (b"\x1b\x80", r"\x1b\x80"),
        ("\x80".encode(), r"\u0080"),
        (b"\xed\xb2\x80", r"\xed\xb2\x80"),
    ],
)
def test_what_a_string_was_can_be_told_from_what_is_shown(content: bytes, shown: str) -> None:
    of = program("s=+0(%ax):string c=$comm")
    data = record(of, text_of(content + b"\0"), content)
    (line,) = lines([decoded(of, data)])
    assert line.endswith(f' s="{shown}" c="{shown}"')


def test_json_says_beside_the_values_which_were_cut_and_which_are_not_utf8() -> None:
    of = program("s=+0(%ax):string t=+0(%bx):string", string_limit=4)
    plain, other = text_of(b"a\0"), text_of(b"12345")
    file = io.StringIO()
    contents = [(plain, other), (text_of(b"\xff\\xff"), plain), (plain, plain)]
    JsonSink(file).write([decoded(of, record(of, *each)) for each in contents])
    cut, both, neither = (json.loads(line) for line in file.getvalue().splitlines())
    assert (cut["args"], cut["truncated"]) == ({"s": "a", "t": "1234"}, ["t"])
    assert "raw" not in cut
    assert both["args"]["s"] == r"\xff\xf"
    assert (both["truncated"], both["raw"]) == (["s"], {"s": "ff5c7866"})
    assert not neither.keys() & {"truncated", "raw"}


def test_json() -> None:
    of = program("a=%ax b=+0(%bx) c=+0(%cx):u8[2] d=+0(%dx):string f=%di:symbol", stack_depth=2)
    data = record(
        of, number(-1), number(0), b"\x01\x02", text_of(b"x\n\0"), number(1), faults=1, stack=(0x10,)
    )
    file = io.StringIO()
    sink = JsonSink(file)
    sink.write([decoded(of, data)] * 2)
    sink.write([])
    sink.summary({"probes": []})
    first, second, summary = (json.loads(line) for line in file.getvalue().splitlines())
    assert first == second
    assert first == {
        "type": "event",
        "event": "ev",
        "time": TIME,
        "pid": 20,
        "tid": 21,
        "cpu": 1,
        "where": "f+0x4",
        "args": {"a": WORD, "b": None, "c": [1, 2], "d": "x\n", "f": "sym+0x1"},
        "stack": ["sym+0x10"],
    }
    assert summary == {"type": "summary", "probes": []}


def test_values_by_type() -> None:
    field: Field = program("v=%ax:u16").format.fields[0]
    assert format_value(field, 17) == "17"
    assert format_value(field, [1, 2]) == "{1,2}"
    assert format_value(field, FAULT) == "(fault)"


# The clock


class Simulation:
    """A tsc of `frequency` MHz and a monotonic clock that drifts by `drift` parts in 10**6."""

    def __init__(self, frequency: float, drift: float = 0.0) -> None:
        self.frequency, self.drift = frequency, drift
        self.elapsed = 0.0  # ns
        self.jump = 0

    def tsc(self) -> int:
        self.elapsed += 200
        return int(self.elapsed * self.frequency / 1000)

    def nanoseconds(self) -> int:
        self.elapsed += 50
        return int(self.elapsed * (1 + self.drift / 1e6)) + self.jump


@pytest.mark.parametrize("frequency", [1000.0, 2595.123, 4999.9])
@pytest.mark.parametrize("drift", [0.0, 40.0, -300.0])
def test_times_stay_within_ten_microseconds(frequency: float, drift: float) -> None:
    simulation = Simulation(frequency, drift)
    clock = Clock(simulation.tsc, simulation.nanoseconds)
    for step in range(3000):
        simulation.elapsed += 100e6
        if step > 1500:
            simulation.drift = -drift  # the clock is steered the other way
            simulation.jump = int(2 * drift * 1500 * 0.1e3)
        before = simulation.tsc(), simulation.nanoseconds()
        clock.calibrate()
        if step not in (1501, 1502):
            assert abs(clock.nanoseconds(before[0]) - before[1]) < 10_000


def test_a_clock_that_was_set_is_followed() -> None:
    simulation = Simulation(2000.0)
    clock = Clock(simulation.tsc, simulation.nanoseconds)
    for _ in range(10):
        simulation.elapsed += 100e6
        clock.calibrate()
    simulation.jump = 3_600_000_000_000
    clock.calibrate()
    for _ in range(10):
        simulation.elapsed += 100e6
        tsc, now = simulation.tsc(), simulation.nanoseconds()
        clock.calibrate()
        assert abs(clock.nanoseconds(tsc) - now) < 10_000


def test_the_real_clock() -> None:
    clock = Clock()
    before = time.monotonic_ns()
    tsc = clock.tsc()
    clock.calibrate()
    after = time.monotonic_ns()
    assert before - 20_000 < clock.nanoseconds(tsc) < after + 20_000
    assert clock.frequency > 1e8


def test_the_tsc_grows() -> None:
    read = TscReader()
    values = [read() for _ in range(100)]
    assert values == sorted(values)


# Counters


@pytest.fixture
def shared() -> memoryview:
    memory = memoryview(mmap.mmap(-1, layout.DATA_SIZE))
    layout.initialise(memory)
    return memory


def claim(shared: memoryview, block: int, pid: int, kind: int, hits: dict[int, int]) -> None:
    struct.pack_into("<QQ", shared, layout.block_offset(block), pid | kind << layout.BLOCK_KIND_SHIFT, 77)
    for index, count in hits.items():
        struct.pack_into("<Q", shared, layout.counter_offset(block, index), count)


def test_a_sum_that_is_read_while_blocks_are_taken_back(
    shared: memoryview, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the retired hits and those of the blocks: none is missed, none counted twice."""
    claim(shared, 2, 10, layout.KIND_THREAD, {0: 5})
    claim(shared, 3, 11, layout.KIND_THREAD, {0: 7})
    counters = Counters(shared)
    counters.retire(11, 1)
    blocks, first = counters.blocks, True

    def retiring() -> list[tuple[int, layout.BlockEntry]]:
        nonlocal first
        if first:
            first = False
            counters.retire(10, 1)
        return blocks()

    monkeypatch.setattr(counters, "blocks", retiring)
    assert counters.by_pid(0) == {10: 5, 11: 7}
    claim(shared, 2, 12, layout.KIND_THREAD, {0: 9})
    first = True
    assert counters.totals(1) == [21]
    counters.close()


def test_sums_of_counters(shared: memoryview) -> None:
    claim(shared, 2, 10, layout.KIND_THREAD, {0: 1, 2: 5})
    claim(shared, 3, 10, layout.KIND_PROCESS, {2: 10})
    claim(shared, 9, 11, layout.KIND_THREAD, {0: 100, 3: 7})
    struct.pack_into("<Q", shared, layout.counter_offset(layout.SHARED_BLOCK, 2), 1000)
    struct.pack_into("<Q", shared, layout.counter_offset(layout.SCRATCH_BLOCK, 2), 5555)
    struct.pack_into("<Q", shared, layout.lost_offset(2), 3)
    counters = Counters(shared)
    assert counters.totals(4) == [101, 0, 1015, 7]
    assert counters.total(2) == 1015
    assert counters.by_pid(2) == {10: 15, 0: 1000}
    assert counters.by_pid(1) == {}
    assert counters.lost(2) == 3
    counters.retire(10, 3)
    counters.retire(10, 3)
    assert [block for block, _ in counters.blocks()] == [layout.SHARED_BLOCK, 9]
    assert counters.totals(4) == [101, 0, 1015, 7]
    assert counters.by_pid(2) == {10: 15, 0: 1000}
    claim(shared, 2, 10, layout.KIND_THREAD, {2: 4})  # the pid once more
    assert counters.by_pid(2) == {10: 19, 0: 1000}
    counters.retire(10, 4)
    assert counters.totals(4) == [101, 0, 1019, 7]
    counters.clear(2)
    assert counters.totals(4) == [101, 0, 0, 7]
    assert counters.lost(2) == 0
    counters.close()


def test_whoever_forks_for_ever_does_not_make_the_controller_grow(shared: memoryview) -> None:
    """Totals stay exact, and so does what the last processes have counted; the oldest are nobody's."""
    counters = Counters(shared)
    counters.maxima.add(3)
    counters._retired = Retired(counters.maxima, most_pairs=30)
    for pid in range(100, 1100):
        claim(shared, 2 + pid % 5, pid, layout.KIND_THREAD, {0: 1, 2: pid, 3: pid % 700})
        counters.retire(pid, 8)
    assert counters.totals(3) == [1000, 0, sum(range(100, 1100))]
    assert counters.largest(3) == 699
    by_pid = counters.by_pid(2)
    assert sum(by_pid.values()) == sum(range(100, 1100))
    assert {pid: by_pid[pid] for pid in range(1090, 1100)} == {pid: pid for pid in range(1090, 1100)}
    assert len(by_pid) == 11
    counters.clear_cells(2)
    assert counters.by_pid(2) == {}
    claim(shared, 2, 5000, layout.KIND_THREAD, {2: 1})
    counters.retire(5000, 8)
    assert counters.by_pid(2) == {5000: 1}
    counters.close()


def test_maxima_are_set_to_zero_without_what_was_lost(shared: memoryview) -> None:
    claim(shared, 2, 10, layout.KIND_THREAD, {2: 5})
    struct.pack_into("<Q", shared, layout.lost_offset(2), 3)
    counters = Counters(shared)
    counters.clear_cells(2)
    assert (counters.total(2), counters.lost(2)) == (0, 3)
    counters.add_shared(2, 7)
    counters.add_shared(2, 1)
    assert counters.by_pid(2) == {0: 8}
    counters.close()
