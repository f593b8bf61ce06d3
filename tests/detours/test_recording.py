"""Events: every kind of fetch argument, filters, full rings, and nothing of the program changed."""

from __future__ import annotations

import os
import random
import struct
import time

import pytest

from detours.model import State, Unreadable
from detours.player import (
    ALL_LIVE,
    DIRECTION_FLAG,
    KEEPS_ALL,
    MEMORY,
    MEMORY_SIZE,
    RINGS,
    STACK,
    STACK_SIZE,
    STACK_TOP,
    STATUS_FLAGS,
    TEXT,
    Player,
    Returned,
    event,
)
from sidestep.arch.x86_64.detour import Count, Record, Surroundings
from sidestep.arch.x86_64.insn import GENERAL_REGISTERS
from sidestep.arch.x86_64.liveness import SCRATCH_REGISTERS, Liveness
from sidestep.arch.x86_64.recording import Rings
from sidestep.errors import ProbeError
from sidestep.events import layout
from sidestep.events.clock import Clock
from sidestep.events.decode import FAULT, Event, Text
from sidestep.events.record import EventProgram

SLOT = 64
GLIBC_TID = 0x2D0
END = MEMORY + MEMORY_SIZE


def play(player: Player, program: EventProgram, **registers: int) -> Event:
    """The event of one call of a function with the probe."""
    player.probe(program.address, KEEPS_ALL, [Record(program)], liveness=ALL_LIVE)
    player.run()
    player.call(program.address, **registers)
    (found,) = player.reader(program).flush()
    return found


def test_the_head_of_an_event(player: Player) -> None:
    clock = Clock()
    before = time.monotonic()
    program = event(7, "p:big malloc x=$arg1")
    player.probe(TEXT, KEEPS_ALL, [Record(program)])
    player.run()
    player.call(TEXT, rdi=5)
    (found,) = player.reader(program, clock=clock).flush()
    assert (found.pid, found.tid) == tuple(map(int, player.ask("tids").split()))
    assert before - 0.001 < found.time < time.monotonic() + 0.001
    assert (found.name, found.where, found.index) == ("big", "malloc+0x0", 7)
    assert found.args == {"x": 5}
    assert player.counters.total(7) == 1
    assert 0 <= found.cpu < (os.cpu_count() or 1024)


@pytest.mark.parametrize("tid_offset", [None, GLIBC_TID])
def test_tids_of_threads_and_pids_of_children(player: Player, tid_offset: int | None) -> None:
    program = event(0, "p f")
    player.probe(TEXT, KEEPS_ALL, [Record(program)], player.surroundings(tid_offset=tid_offset))
    player.run()
    reader = player.reader(program)
    tids = {int(word) for word in player.ask("hammer", TEXT, 3, 5).split()}
    events = reader.flush()
    assert {found.tid for found in events} == tids
    assert {found.pid for found in events} == {player.pid}
    assert len(events) == 15
    child, status = map(int, player.ask("fork", TEXT, 5, 0).split())
    assert status == 0
    assert [(found.pid, found.tid) for found in reader.flush()] == [(child, child)] * 5


def test_random_fetch_arguments_against_the_model(player: Player) -> None:
    """Numbers of every type from registers, stack and memory, some of which is not there."""
    source = random.Random(3)
    contents = struct.pack(
        f"<{MEMORY_SIZE // 8}Q",
        *(source.choice((MEMORY + 8 * i, source.getrandbits(64), i)) for i in range(MEMORY_SIZE // 8)),
    )
    stack = random.Random(4).randbytes(STACK_SIZE)
    player.poke(MEMORY, contents)
    for case in range(40):
        text = "p f " + " ".join(
            f"v{number}={random_fetch(source)}" for number in range(source.randrange(1, 90))
        )
        program = event(case, text)
        player.edit()
        player.probe(TEXT, KEEPS_ALL, [Record(program)], liveness=ALL_LIVE)
        player.run()
        player.poke(STACK, stack)
        pointer = source.choice(
            (STACK_TOP, STACK_TOP | 4, STACK + STACK_SIZE - 24, STACK + 5 * layout.PAGE_SIZE - 32)
        )
        before = {
            name: source.choice((source.getrandbits(64), MEMORY + source.randrange(MEMORY_SIZE + 64)))
            for name in GENERAL_REGISTERS
        }
        before |= {"rsp": pointer, "flags": 0x202 | source.getrandbits(12) & STATUS_FLAGS}
        after = player.call(TEXT, **before)
        return_address = player.peek(pointer, 8)
        red_zone = bytes(3 * offset + 1 & 0xFF for offset in range(128))  # as the player fills it
        below = stack[: pointer - STACK - 128] + red_zone
        whole_stack = below + return_address + stack[pointer - STACK + 8 :]
        areas = ((MEMORY, contents), (STACK, whole_stack))

        def read(address: int, size: int, areas: tuple[tuple[int, bytes], ...] = areas) -> bytes:
            for start, content in areas:
                if start <= address < start + len(content):
                    return content[address - start :][:size]
            return b""

        state = State(TEXT, before, read, lambda _: 0)
        (found,) = player.reader(program).flush()
        for argument in program.arguments:
            try:
                expected: object = state.number(argument.fetch, argument.type)
            except Unreadable:
                expected = FAULT
            assert found.args[argument.name] == expected, str(argument)
        assert {**after.registers, "rsp": pointer} == before
        assert after.red_zone_kept
        assert after.vectors_kept


def random_fetch(source: random.Random) -> str:
    registers = ("ax", "bx", "cx", "dx", "si", "di", "bp", "sp", "r8", "r10", "r11", "r15")
    constants = ["%flags", "$stack", f"@{MEMORY + 8:#x}", f"@{END - 4:#x}", "\\-5", "\\12345678901234"]

    def inner(depth: int) -> str:
        kind = source.random()
        if kind < 0.3 and depth < 3:
            return f"{source.choice('+-')}{source.randrange(64)}({inner(depth + 1)})"
        if kind < 0.5:
            return f"$arg{source.randrange(1, 12)}"
        if kind < 0.6:
            return f"$stack{source.choice((1, 2, 3, 60, 300, 2000))}"
        if kind < 0.8:
            return f"%{source.choice(registers)}"
        return source.choice([*constants, "$stack0", "%ip"] if depth == 0 else constants)

    container = source.choice((8, 16, 32, 64))
    width = source.randrange(1, container + 1)
    offset = source.randrange(container - width + 1)
    kind = source.choice(
        (
            "",
            ":u8",
            ":u16",
            ":u32",
            ":u64",
            ":s8",
            ":s16",
            ":s32",
            ":s64",
            ":x8",
            ":x64",
            f":b{width}@{offset}/{container}",
        )
    )
    return inner(0) + kind


def test_strings(player: Player) -> None:
    limit = 20
    player.poke(MEMORY, b"short\0behind" + b"-" * 52)
    player.poke(MEMORY + 64, b"exactly twenty bytes\0")
    player.poke(MEMORY + 128, b"one byte more than 20\0")
    player.poke(MEMORY + layout.PAGE_SIZE - 4, b"across pages\0")
    player.poke(END - 6, b"ends.\0")
    player.poke(END - 3, b"cut")
    player.poke(MEMORY + 256, struct.pack("<Q", MEMORY + 64))
    player.poke(MEMORY + 300, b"\xff\x1b[31m\0")
    places = {
        "short": MEMORY,
        "exact": MEMORY + 64,
        "long": MEMORY + 128,
        "across": MEMORY + layout.PAGE_SIZE - 4,
        "ends": END - 6,
        "cut": END - 3,
        "nothing": END,
        "empty": MEMORY + 5,
        "hostile": MEMORY + 300,
        "kernel": 0xFFFF_8000_0000_0000,
        "null": 0,
    }
    text = " ".join(f"{name}=+0(\\{place}):string" for name, place in places.items())
    program = event(0, f"p f {text} inner=+0(+256(%di)):string broken=+0(+0(%si)):string", string_limit=limit)
    found = play(player, program, rdi=MEMORY, rsi=END)
    assert found.args == {
        "short": "short",
        "exact": "exactly twenty bytes",
        "long": "one byte more than 2",
        "across": "across pages",
        "ends": FAULT,  # poked over by the next
        "cut": FAULT,
        "nothing": FAULT,
        "empty": "",
        "hostile": "\\xff\x1b[31m",
        "kernel": FAULT,
        "null": FAULT,
        "inner": "exactly twenty bytes",
        "broken": FAULT,
    }
    assert isinstance(found.args["long"], Text)
    assert found.args["long"].truncated


def test_a_string_up_to_the_last_readable_byte(player: Player) -> None:
    player.poke(END - 6, b"ends.\0")
    found = play(player, event(0, "p f s=+0(%di):string"), rdi=END - 6)
    assert found.args == {"s": "ends."}


def test_arrays_comm_and_symbols(player: Player) -> None:
    player.poke(MEMORY, bytes(range(256)))
    player.poke(END - 8, b"\xff\xfe\x01\x80\x02\x00\x03\x00")
    player.ask("name", "a thread")
    program = event(
        0,
        f"p f a=+0(%di):u8[5] b=@{MEMORY + 8:#x}:x16[3] c=-8(%si):s16[4] d=-4(%si):u8[5]"
        " name=$comm at=%di:symbol g=+8($stack):u32[2]",
    )
    player.poke(STACK_TOP + 8, struct.pack("<2I", 77, 78))
    found = play(player, program, rdi=MEMORY, rsi=END)
    assert found.args == {
        "a": [0, 1, 2, 3, 4],
        "b": [0x0908, 0x0B0A, 0x0D0C],
        "c": [-257, -32767, 2, 3],
        "d": FAULT,
        "name": "a thread",
        "at": hex(MEMORY),
        "g": [77, 78],
    }


def test_a_variable_is_looked_up_by_the_caller(player: Player) -> None:
    player.poke(MEMORY + 24, struct.pack("<i", -9))
    asked = []

    def resolve(variable: object) -> int:
        asked.append(str(variable))
        return MEMORY + 24

    program = event(0, "p f v=@libc:counter+24:s32")
    surroundings = Surroundings(player.runtime, True, None, player.rings, resolve)
    player.probe(TEXT, KEEPS_ALL, [Record(program)], surroundings)
    player.run()
    player.call(TEXT)
    (found,) = player.reader(program).flush()
    assert found.args == {"v": -9}
    assert asked == ["@libc:counter+24"]


def chain(frames: list[tuple[int, int, int]]) -> dict[int, bytes]:
    """Memory of frames: (address, next frame pointer, return address)."""
    return {address: struct.pack("<QQ", following, returns) for address, following, returns in frames}


@pytest.mark.parametrize(
    ("frames", "pointer", "expected"),
    [
        (
            [(STACK_TOP + 64, STACK_TOP + 128, 0x1001), (STACK_TOP + 128, 0, 0x1002)],
            STACK_TOP + 64,
            [0x1001, 0x1002],
        ),
        ([(STACK_TOP + 64, STACK_TOP + 64, 0x1001)], STACK_TOP + 64, [0x1001]),  # leads to itself
        ([(STACK_TOP + 64, STACK_TOP + 32, 0x1001)], STACK_TOP + 64, [0x1001]),  # leads down
        ([(STACK_TOP + 64, STACK_TOP + 129, 0x1001)], STACK_TOP + 64, [0x1001]),  # leads to an odd address
        ([(STACK_TOP + 64, STACK + STACK_SIZE + 64, 0x1001)], STACK_TOP + 64, [0x1001]),  # leads to nowhere
        (
            [(STACK_TOP + 64, STACK_TOP + 9000, 0x1001), (STACK_TOP + 9000, 0, 0x1002)],
            STACK_TOP + 64,
            [0x1001, 0x1002],
        ),
        ([(STACK_TOP + 64, STACK_TOP + 128, 0)], STACK_TOP + 64, []),
        ([], 12345, []),
        ([], 0, []),
        ([(STACK + STACK_SIZE - 8, 0, 0)], STACK + STACK_SIZE - 8, []),  # half of the frame is there
    ],
)
def test_stacks(
    player: Player, frames: list[tuple[int, int, int]], pointer: int, expected: list[int]
) -> None:
    for address, content in chain(frames).items():
        player.poke(address, content[: STACK + STACK_SIZE - address])
    found = play(player, event(0, "p f", stack_depth=8), rbp=pointer)
    return_address = int.from_bytes(player.peek(STACK_TOP, 8), "little")
    assert found.stack == [TEXT, return_address, *expected]


def test_a_stack_ends_at_its_depth(player: Player) -> None:
    frames = [
        (STACK_TOP + 64 + 16 * number, STACK_TOP + 80 + 16 * number, 0x1000 + number) for number in range(30)
    ]
    for address, content in chain(frames).items():
        player.poke(address, content)
    for index, (depth, at_entry, expected) in enumerate(
        [(1, True, 0), (2, True, 0), (5, True, 3), (5, False, 4), (16, False, 15)]
    ):
        player.edit()
        program = event(index, "p f", stack_depth=depth, at_entry=at_entry)
        player.probe(TEXT, KEEPS_ALL, [Record(program)])
        player.run()
        player.call(TEXT, rbp=STACK_TOP + 64)
        (found,) = player.reader(program).flush()
        returned = [int.from_bytes(player.peek(STACK_TOP, 8), "little")] if at_entry and depth > 1 else []
        assert found.stack == [TEXT, *returned, *range(0x1000, 0x1000 + expected)]


def test_filters_by_thread_and_by_name(player: Player) -> None:
    own = player.pid
    filters: list[tuple[dict[str, object], bool]] = [
        ({"tids": frozenset({own})}, True),
        ({"tids": frozenset({1, own, 2})}, True),
        ({"tids": frozenset({1})}, False),
        ({"comms": (b"wanted",)}, True),
        ({"comms": (b"other", b"wanted")}, True),
        ({"comms": (b"wante",)}, False),
        ({"comms": (b"wanted!",)}, False),
        ({"comms": (b"wanted",), "tids": frozenset({own})}, True),
        ({"comms": (b"wanted",), "tids": frozenset({1})}, False),
    ]
    programs = [
        event(index, "p f", TEXT + SLOT * index, matched_index=100 + index, **options)
        for index, (options, _) in enumerate(filters)
    ]
    for program in programs:
        player.probe(program.address, KEEPS_ALL, [Record(program)], liveness=ALL_LIVE)
    player.run()
    player.ask("name", "wanted")
    for program in programs:
        player.call(program.address)
    expected = [index for index, (_, passes) in enumerate(filters) if passes]
    assert [found.index for found in player.reader(*programs).flush()] == expected
    assert player.counters.totals(len(filters)) == [1] * len(filters)
    assert [index for index, hits in enumerate(player.counters.totals(120)[100:]) if hits] == expected


def test_a_long_name_is_compared_as_the_kernel_keeps_it(player: Player) -> None:
    player.ask("name", "a name of more than fifteen bytes")
    found = play(player, event(0, "p f c=$comm", comms=(b"a name of more than fifteen bytes",)))
    assert found.args == {"c": "a name of more "}


RINGS_OF_THREADS = pytest.mark.parametrize("player", [0, 2, 20], indirect=True)


@RINGS_OF_THREADS
def test_a_full_ring_loses_events_and_counts_them(player: Player) -> None:
    program = event(5, "p f x=$arg1")
    player.probe(TEXT, KEEPS_ALL, [Record(program)], liveness=ALL_LIVE)
    player.run()
    reader = player.reader(program)
    for _ in range(3):
        player.ask("hammer", TEXT, 1, 5000)
        values = [found.args["x"] for found in reader.flush()]
        assert values == sorted(values)
    assert player.counters.total(5) == 15000
    assert player.counters.lost(5) > 0
    assert reader.delivered[5] + player.counters.lost(5) == 15000
    assert reader.damaged == reader.holes == 0


@RINGS_OF_THREADS
def test_threads_and_the_reader_at_the_same_time(player: Player) -> None:
    """Three sizes of records from four threads; every one arrives once or is counted as lost."""
    texts = ["p f x=$arg1", "p f x=$arg1 a=$arg2 b=$arg3 c=\\5", "p f x=$arg1 s=$comm"]
    programs = [event(index, text, TEXT + SLOT * index) for index, text in enumerate(texts)]
    for program in programs:
        player.probe(program.address, KEEPS_ALL, [Record(program)], player.surroundings(tid_offset=GLIBC_TID))
    player.run()
    reader = player.reader(*programs)
    seen: dict[tuple[int, int], int] = {}
    times: list[float] = []
    taken = 0
    for program in programs:
        player.start("hammer", program.address, 4, 20_000)
        while not player.answered(0.002):
            events = reader.poll()
            taken += len(events)
            times += [found.time for found in events]
            for found in events:
                key = (found.index, found.tid)
                value = found.args["x"]
                assert isinstance(value, int)
                assert value > seen.get(key, -1)
                seen[key] = value
        player.answer()
        taken += len(reader.flush())
    for program in programs:
        hits = player.counters.total(program.index)
        assert hits == 80_000
        assert reader.delivered[program.index] + player.counters.lost(program.index) == hits
    assert taken == reader.delivered.total()
    assert times == sorted(times)
    assert reader.damaged == reader.holes == 0


@RINGS_OF_THREADS
def test_signal_handlers_that_record_in_between(player: Player) -> None:
    program = event(0, "p f x=$arg1 y=$arg2")
    player.probe(TEXT, KEEPS_ALL, [Record(program)], player.surroundings(tid_offset=GLIBC_TID), ALL_LIVE)
    player.run()
    reader = player.reader(program)
    player.start("signals", TEXT, 300_000)
    while not player.answered(0.001):
        reader.take_runs()
    handled = int(player.answer())
    reader.take_runs()
    assert player.counters.total(0) == 300_000 + handled
    assert reader.delivered[0] + player.counters.lost(0) == 300_000 + handled
    assert reader.damaged == reader.holes == 0


def test_several_probes_at_one_address_run_in_order(player: Player) -> None:
    first, second = event(1, "p:first f x=%ax"), event(2, "p:second f x=%ax if %ax == 3")
    player.probe(TEXT, KEEPS_ALL, [Count(0), Record(second), Count(3), Record(first)], liveness=ALL_LIVE)
    player.run()
    for value in (3, 4):
        after = player.call(TEXT, rax=value)
        assert after.registers["rax"] == value
    assert player.counters.totals(4) == [2, 2, 2, 2]
    events = player.reader(first, second).flush()
    assert [(found.name, found.args["x"]) for found in events] == [("second", 3), ("first", 3), ("first", 4)]


@RINGS_OF_THREADS
def test_what_is_live_is_kept(player: Player) -> None:
    source = random.Random(11)
    probed: list[tuple[EventProgram, Liveness]] = []
    texts = [
        "p f",
        "p f a=%r11 b=%cx c=%ax d=$arg3 e=%r10",
        "p f a=+0(%ax):string b=%flags if +0(%dx) != 5 || %cx",
        "p f a=$stack3 b=$arg9 c=$comm d=+0(%r10):u8[9]",
    ]
    for index in range(40):
        dead = tuple(name for name in SCRATCH_REGISTERS if source.random() < 0.5)
        live = Liveness(frozenset(GENERAL_REGISTERS) - set(dead), source.random() < 0.5, dead)
        options = source.choice(({}, {"stack_depth": 5}, {"comms": (b"player",)}, {"tids": frozenset({1})}))
        program = event(index, texts[index % 4], TEXT + SLOT * index, **options)
        surroundings = player.surroundings(
            by_thread=source.random() < 0.8, tid_offset=source.choice((None, GLIBC_TID))
        )
        player.probe(program.address, KEEPS_ALL, [Record(program)], surroundings, live)
        probed.append((program, live))
    player.run()
    for program, live in probed:
        for _ in range(3):
            before = {name: source.getrandbits(64) for name in GENERAL_REGISTERS if name != "rsp"}
            before |= {"rbp": source.choice((MEMORY, STACK_TOP + 64, 3))}
            before |= {
                "flags": 0x202 | source.getrandbits(12) & STATUS_FLAGS | source.choice((0, DIRECTION_FLAG))
            }
            after: Returned = player.call(program.address, **before)
            for name in live.registers & before.keys():
                assert after.registers[name] == before[name], (name, str(program))
            mask = (STATUS_FLAGS if live.flags else 0) | DIRECTION_FLAG
            assert after.registers["flags"] & mask == before["flags"] & mask
            assert after.red_zone_kept
            assert after.vectors_kept


@RINGS_OF_THREADS
def test_how_much_stack_a_hit_needs(player: Player) -> None:
    """At most 256 bytes below the red zone, for the event that needs most."""
    text = (
        "p f a=+0(%ax):u32 b=+0(%cx) c=+8(%dx) d=+0(%r10) e=+0(%r11):string g=%flags"
        " if a == 0 && b == 0 && c == 0 && d == 0 && ((a + %r8) - (b + %r9)) - (c + +0(%si)) == 0"
    )
    program = event(0, text, stack_depth=16, comms=(b"player",), matched_index=1)
    player.probe(TEXT, KEEPS_ALL, [Record(program)], liveness=ALL_LIVE)
    player.run()
    pattern = b"\xa5" * 4096
    player.poke(STACK_TOP - 4096, pattern)
    player.poke(STACK_TOP + 64, struct.pack("<QQ", STACK_TOP + 9000, 5))
    player.poke(STACK_TOP + 9000, struct.pack("<QQ", 0, 6))
    registers = dict.fromkeys(("rax", "rcx", "rdx", "r10", "r11", "rsi"), MEMORY)
    player.call(TEXT, rbp=STACK_TOP + 64, **registers)
    (found,) = player.reader(program).flush()
    assert found.stack[2:] == [5, 6]
    below = player.peek(STACK_TOP - 4096, 4096)
    used = 4096 - next(offset for offset in range(4096) if below[offset] != 0xA5)
    assert 128 < used <= 128 + 256


def test_an_event_that_is_too_large_is_refused() -> None:
    text = "p f " + " ".join(f"s{number}=+0(%di):string" for number in range(120))
    with pytest.raises(ProbeError, match="is the limit"):
        _ = event(0, text, string_limit=4000).format


def ring_heads(player: Player) -> list[int]:
    """Bytes ever reserved in each ring."""
    return [
        int.from_bytes(player.shared[layout.ring_offset(ring, player.ring_size) :][:8], "little")
        for ring in range(player.ring_count)
    ]


def test_a_cpu_without_a_ring_takes_the_first(player: Player) -> None:
    program = event(0, "p f")
    one = Surroundings(player.runtime, rings=Rings(RINGS, 1, player.ring_size))
    player.probe(TEXT, KEEPS_ALL, [Record(program)], one)
    player.run()
    player.ask("hammer", TEXT, 4, 5)
    assert ring_heads(player) == [20 * 24, 0, 0, 0, 0, 0]
    assert len(player.reader(program).flush()) == 20


def test_the_first_threads_have_rings_of_their_own(player: Player) -> None:
    program = event(0, "p f")
    player.probe(TEXT, KEEPS_ALL, [Record(program)])
    player.run()
    tids = player.ask("hammer", TEXT, 5, 10).split()
    heads = ring_heads(player)
    assert heads[player.cpu_rings :] == [240, 240]
    assert sum(heads) == 50 * 24
    events = player.reader(program).flush()
    assert sorted(found.tid for found in events) == sorted(int(tid) for tid in tids for _ in range(10))


def test_a_forked_child_does_not_use_the_rings_of_its_parents_threads(player: Player) -> None:
    program = event(0, "p f")
    player.probe(TEXT, KEEPS_ALL, [Record(program)])
    player.run()
    player.call(TEXT)
    assert ring_heads(player)[player.cpu_rings :] == [24, 0]
    child, _ = map(int, player.ask("fork", TEXT, 5, 0).split())
    assert ring_heads(player)[player.cpu_rings :] == [24, 5 * 24]
    assert [found.pid for found in player.reader(program).flush()] == [player.pid, *[child] * 5]


def test_a_ring_whose_owner_died_in_the_middle_of_a_record_goes_to_the_next_owner(player: Player) -> None:
    program = event(0, "p f x=$arg1")
    player.probe(TEXT, KEEPS_ALL, [Record(program)])
    player.run()
    reader = player.reader(program)
    child, _ = map(int, player.ask("fork", TEXT, 3, 0).split())
    (block,) = player.counters.ended(lambda pid: pid == player.pid)[child]
    ring = layout.thread_ring(block, player.cpu_rings)
    assert ring == player.cpu_rings
    control = player.shared[layout.ring_offset(ring, player.ring_size) :][:8].cast("Q")
    control[0] += program.format.size
    control.release()
    reader.settle([ring])
    player.counters.retire(child, 1)
    child, _ = map(int, player.ask("fork", TEXT, 2, 0).split())
    assert [found.args["x"] for found in reader.flush()] == [0, 1, 2, 0, 1]
    assert (reader.holes, reader.damaged, reader.drained) == (1, 0, True)
    assert player.counters.total(0) == 5


@pytest.mark.parametrize("by_thread", [True, False])
def test_the_cpu_of_an_event(player: Player, by_thread: bool) -> None:
    program = event(0, "p f")
    player.probe(TEXT, KEEPS_ALL, [Record(program)], player.surroundings(by_thread=by_thread))
    player.run()
    for cpu in sorted(os.sched_getaffinity(0)):
        os.sched_setaffinity(player.pid, {cpu})
        player.call(TEXT)
    assert [found.cpu for found in player.reader(program).flush()] == sorted(os.sched_getaffinity(0))
