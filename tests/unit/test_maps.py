"""Maps and events of native handlers, in plain Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import sidestep
from sidestep import (
    Array,
    Counter,
    Event,
    HandlerFault,
    Hash,
    Histogram,
    Kprobe,
    Machine,
    PerThread,
    Registers,
    Stats,
    Struct,
    comm,
    emit,
    i8,
    i16,
    i64,
    native,
    stack,
    string,
    u8,
    u16,
    u64,
)  # fmt: skip
from sidestep.compiler import interpreter
from sidestep.compiler.machine import on
from sidestep.compiler.native import NativeFunction

TOP = (1 << 64) - 1


@pytest.fixture(autouse=True)
def machine() -> Iterator[Machine]:
    with on(Machine(thread=7)) as current:
        yield current


def test_counter() -> None:
    counter = Counter()
    counter.add()
    counter.add(u64(41))
    assert (counter.value, int(counter), str(counter)) == (42, 42, "42")
    counter.reset()
    assert counter.value == 0
    counter.add(u64(TOP))
    counter.add(u64(2))
    assert counter.value == 1


def test_array() -> None:
    array = Array(4, i16)
    array[1] = -5
    array[2] += 3
    array[3] -= i16(3)
    assert array.to_list() == [0, -5, 3, -3]
    assert array.to_dict() == {1: -5, 2: 3, 3: -3}
    assert array[1] == i16(-5)
    assert len(array) == 4
    assert str(array) == "[1]: -5\n[2]: 3\n[3]: -3"
    for index in (4, -1):
        with pytest.raises(IndexError):
            array[index]
        with pytest.raises(IndexError):
            array[index] = 1
    array.reset()
    assert array.to_dict() == {}


def test_hash() -> None:
    table = Hash(16, i8, i64, deletable=True)
    for key in (-3, 0, 5, 0):
        table[key] += -2
    table[5] = 9
    assert table.to_dict() == {-3: -2, 0: -4, 5: 9}
    assert (table[5], table[77], len(table), table.drops) == (9, 0, 3, 0)
    assert 0 in table
    assert 1 not in table
    assert set(table) == {-3, 0, 5}
    assert str(table).splitlines()[-1] == "[5]: 9"
    del table[5], table[77]
    assert table.to_dict() == {-3: -2, 0: -4}
    table[5] += 1
    assert table[5] == 1
    table.reset()
    assert table.to_dict() == {}


def test_a_full_hash_counts_what_it_drops() -> None:
    table = Hash(8, deletable=True)
    for key in range(20):
        table[key] += 1
    assert len(table) == 8
    assert table.drops == 12
    table[3] += 1
    assert (table[3], table.drops) == (2, 12)
    del table[3]
    table[19] += 1
    assert (table[3], table[19], table.drops) == (0, 1, 12)


def test_per_thread(machine: Machine) -> None:
    numbers = PerThread()
    numbers.set(u64(5))
    machine.thread = 8
    numbers.add(u64(2))
    assert numbers.get() == 2
    assert numbers.to_dict() == {7: 5, 8: 2}
    numbers.reset()
    assert set(numbers.to_dict().values()) == {0}


def test_stats() -> None:
    stats = Stats()
    nothing = {"count": 0, "sum": 0, "min": None, "max": None, "mean": None}
    assert stats.to_dict() == nothing
    assert str(stats) == "count 0, sum 0, min None, max None, mean -"
    for value in (4, 0, 11):
        stats.add(u64(value))
    assert stats.to_dict() == {"count": 3, "sum": 15, "min": 0, "max": 11, "mean": 5.0}
    assert str(stats) == "count 3, sum 15, min 0, max 11, mean 5.0"
    stats.reset()
    assert stats.to_dict() == nothing
    stats.add(u64(6))
    assert stats.to_dict() == {"count": 1, "sum": 6, "min": 6, "max": 6, "mean": 6.0}


def test_histogram_by_powers_of_two() -> None:
    sizes = Histogram()
    for value in (0, 1, 2, 3, 1024, 1500, TOP):
        sizes.add(u64(value))
    assert sizes.count == 7
    found = sizes.to_dict()
    assert found["[0]"] == found["[1]"] == 1
    assert found["[2, 4)"] == found["[1K, 2K)"] == 2
    assert found["[8E, 16E)"] == 1
    assert len(sizes.buckets) == 65
    sizes.reset()
    assert sizes.buckets == []
    assert str(sizes) == ""


def test_histogram_by_steps() -> None:
    steps = Histogram(linear=(10, 40, 10))
    for value in (9, 10, 19, 20, 39, 40, TOP):
        steps.add(u64(value))
    assert [(each.low, each.high, each.count) for each in steps.buckets] == [
        (None, 10, 1), (10, 20, 2), (20, 30, 1), (30, 40, 1), (40, None, 2),
    ]  # fmt: skip
    assert list(steps.to_dict()) == ["(..., 10)", "[10, 20)", "[20, 30)", "[30, 40)", "[40, ...)"]


def test_the_picture_of_a_histogram() -> None:
    sizes = Histogram()
    for value, times in ((1, 1), (3, 4), (9, 2)):
        for _ in range(times):
            sizes.add(u64(value))
    bars = [
        (line.split("|")[0].split()[0], line.split("|")[1].count("@")) for line in str(sizes).splitlines()
    ]
    assert bars == [("[1]", 13), ("[2,", 52), ("[4,", 0), ("[8,", 26)]
    assert len({len(line) for line in str(sizes).splitlines()}) == 1


WRONG: list[tuple[Any, type[Exception], str]] = [
    (lambda: Array(0), ValueError, "the size is 1 to"),
    (lambda: Array(1 << 30), ValueError, "the size is 1 to"),
    (lambda: Array(4, int), TypeError, "u8 .. u64"),
    (lambda: Hash(0), ValueError, "the capacity is 1 to"),
    (lambda: Hash(8, str), TypeError, "the key is one of"),
    (lambda: Hash(8, u64, float), TypeError, "the value is one of"),
    (lambda: Histogram(linear=(10, 10, 1)), ValueError, "low, high and step"),
    (lambda: Histogram(linear=(0, 10, 0)), ValueError, "low, high and step"),
    (lambda: Histogram(linear=(0, 1 << 40, 1)), ValueError, "buckets, 4096 at most"),
]


@pytest.mark.parametrize(("make", "kind", "message"), WRONG)
def test_wrong_sizes_and_types(make: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        make()


class Happened(Event):
    size: u64
    small: i8


class Further(Happened):
    flag: u8


def test_events(machine: Machine) -> None:
    event = Happened(size=3, small=i8(-1))
    emit(event)
    assert machine.events == [event]
    assert event == Happened(size=3, small=-1)
    assert event != Happened(size=4, small=-1)
    assert hash(event) == hash(Happened(size=3, small=-1))
    assert repr(event) == "Happened(size=3, small=-1)"
    assert list(Further.fields) == ["size", "small", "flag"]
    assert event != Further(size=3, small=-1, flag=0)


@pytest.mark.parametrize(
    "given", [{"size": 3}, {"size": 3, "small": 300}, {"size": i8(3), "small": 1}, {"size": 3, "other": 1}]
)
def test_events_with_wrong_fields(given: dict[str, int]) -> None:
    with pytest.raises(TypeError):
        Happened(**given)


def test_event_classes_with_other_fields() -> None:
    with pytest.raises(TypeError, match=r"Wrong\.name: a field is"):

        class Wrong(Event):
            name: str


def test_only_events_are_emitted() -> None:
    with pytest.raises(TypeError, match="emit takes an Event"):
        emit(3)  # type: ignore[arg-type]


def test_a_function_that_handlers_call_means_the_same_in_python() -> None:
    """Its plain numbers have the types that they have in the target."""

    @native
    def below(value: u64, by: u64 = 6) -> u64:
        return value - by

    @native
    def larger(value):  # type: ignore[no-untyped-def]
        return max(value, 200) + 100

    @native
    def handler(p, regs):  # type: ignore[no-untyped-def]
        regs.ax = below(5)
        regs.bx = u64(larger(u8(regs.di)))

    registers = Registers(di=7)
    handler(None, registers)
    assert registers.ax == TOP
    assert registers.bx == 44
    assert below(5) == u64(TOP)
    assert larger(u8(7)) == u8(44)
    assert larger(u64(7)) == u64(300)
    with pytest.raises(TypeError, match="value is u64"):
        below(-1)
    with pytest.raises(sidestep.HandlerError):
        larger(i8(7))


LIMIT = 5


@native
def beyond_the_limit(value: u64) -> u64:
    return value + LIMIT


def test_numbers_from_outside_are_taken_when_a_function_is_defined(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = 7

    @native
    def handler(p, regs):  # type: ignore[no-untyped-def]
        regs.ax = beyond_the_limit(regs.di) + inner + LIMIT

    monkeypatch.setitem(globals(), "LIMIT", 1000)
    inner = 9

    @native
    def later(p, regs):  # type: ignore[no-untyped-def]
        regs.ax = beyond_the_limit(regs.di) + inner

    for function, expected in ((handler, 18), (later, 15)):
        registers = Registers(di=1)
        function(None, registers)
        frame = interpreter.Frame({"di": 1})
        interpreter.run(function.representation, frame)
        assert registers.ax == frame.registers["ax"] == expected


def test_the_address_of_the_probe_has_64_bits() -> None:
    @native
    def handler(p, regs):  # type: ignore[no-untyped-def]
        regs.ax = ~(p.addr & 4095) + p.addr * (1 << 40)

    registers = Registers()
    handler(Kprobe(addr=0x1234567), registers)
    frame = interpreter.Frame({"ip": 0x1234567})
    interpreter.run(handler.representation, frame)
    assert registers.ax == frame.registers["ax"]


def test_annotations_of_what_is_no_number_are_for_type_checkers() -> None:
    counter = Counter()

    @native
    def into(target: Counter, amount: u64, regs: Registers) -> None:
        target.add(amount + regs.di)

    @native
    def handler(p: Any, regs: Registers) -> None:
        into(counter, 2, regs)
        into(amount=5, regs=regs, target=counter)

    handler(None, Registers(di=10))
    assert counter.value == 27


class Flow(Struct):
    port: u16
    offset: i8


TEXT_AT = 0x5000


def test_keys_of_text(machine: Machine) -> None:
    names = Hash(8, string(8), deletable=True)
    machine.put(TEXT_AT, b"alpha\0beta\0\xff\xfe\0eightlongmore")

    @native
    def count(p, regs):  # type: ignore[no-untyped-def]
        names[string(regs.di, 8)] += 1

    @native
    def forget(p, regs):  # type: ignore[no-untyped-def]
        if string(regs.di, 8) == "beta" and string(regs.di, 8) in names:
            del names[string(regs.di, 8)]

    for interpreted in (False, True):
        for offset in (0, 6, 11, 14, 0, 6):
            call(count, interpreted, di=TEXT_AT + offset)
        assert names.to_dict() == {"alpha": 2, "beta": 2, b"\xff\xfe": 1, "eightlon": 1}
        assert names["alpha"] == names[b"alpha"] == 2
        assert b"\xff\xfe" in names
        assert "other" not in names
        for _ in range(2):
            call(forget, interpreted, di=TEXT_AT + 6)
        assert sorted(map(str, names)) == ["alpha", "b'\\xff\\xfe'", "eightlon"]
        with pytest.raises(HandlerFault):  # memory ends before the text
            call(count, interpreted, di=TEXT_AT + 24)
        names.reset()
        assert len(names) == 0


def call(handler: NativeFunction, interpreted: bool, **registers: int) -> None:
    if interpreted:
        interpreter.run(handler.representation, interpreter.Frame(dict(registers)))
    else:
        handler(None, Registers(**registers))


def test_the_name_of_the_thread_as_a_key(machine: Machine) -> None:
    names = Hash(8, string(20))

    @native
    def count(p, regs):  # type: ignore[no-untyped-def]
        names[comm()] += 1

    machine.name = b"worker"
    for interpreted in (False, True):
        call(count, interpreted)
    assert names.to_dict() == {"worker": 2}
    assert str(names) == "['worker']: 2"


def test_keys_that_are_structures() -> None:
    flows = Hash(8, Flow, i64, deletable=True)

    @native
    def count(p, regs):  # type: ignore[no-untyped-def]
        flows[Flow(offset=i8(regs.si), port=u16(regs.di))] -= 3
        if Flow(port=1, offset=2) in flows:
            regs.ax = u64(flows[Flow(port=1, offset=2)])

    for interpreted in (False, True):
        call(count, interpreted, di=80, si=TOP)
        call(count, interpreted, di=1, si=2)
    assert flows.to_dict() == {Flow(port=80, offset=-1): -6, Flow(port=1, offset=2): -6}
    del flows[Flow(port=1, offset=2)]
    assert str(flows) == "[Flow(port=80, offset=-1)]: -6"


WRONG_KEYS: list[tuple[Any, Any]] = [
    (u64, "text"), (u8, 300), (u8, None), (string(4), 3), (string(4), string(TEXT_AT, 5)),
    (string(4), comm()), (Flow, 3), (Flow, Happened(size=1, small=1)),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "key"), WRONG_KEYS, ids=str)
def test_keys_of_other_types(kind: Any, key: Any) -> None:
    table = Hash(8, kind, deletable=True)
    with pytest.raises(TypeError, match="the key is"):
        table[key] += 1
    with pytest.raises(TypeError, match="the key is"):
        del table[key]


@pytest.mark.parametrize("key", ["longer", "a\0b", b"\0"])
def test_text_that_no_key_can_be(key: Any) -> None:
    with pytest.raises(ValueError, match="is never equal"):
        Hash(8, string(4))[key] = 1


def test_kinds_of_keys_that_are_refused() -> None:
    class Texts(Event):
        text: string(8)  # type: ignore[valid-type]

    class Empty(Struct):
        pass

    for kind in (Texts, Empty, Struct, string(129), str):
        with pytest.raises(TypeError):
            Hash(8, kind)  # type: ignore[arg-type]


class Traced(Event):
    size: u8
    where: stack(4)  # type: ignore[valid-type]


def test_backtraces_in_events(machine: Machine) -> None:
    @native
    def handler(p, regs):  # type: ignore[no-untyped-def]
        emit(Traced(where=stack(3), size=u8(regs.di)))

    machine.backtrace = (1, 2, 3, 4, 5)
    for interpreted in (False, True):
        call(handler, interpreted, di=7)
    assert machine.events == [Traced(size=7, where=[1, 2, 3])] * 2
    assert repr(machine.events[0]) == "Traced(size=7, where=[1, 2, 3])"
    with pytest.raises(ValueError, match="1 to 12 addresses"):
        stack(13)
    with pytest.raises(TypeError, match="one backtrace at most"):
        type("Two", (Event,), {"__annotations__": {"a": stack(2), "b": stack(2)}})
    with pytest.raises(TypeError, match=r"where is stack\(4\)"):
        Traced(size=1, where=stack(5))


class Texts(Event):
    text: string(8)  # type: ignore[valid-type]


def test_text_in_events(machine: Machine) -> None:
    """As the target's events have it: its beginning, escapes, or nothing."""

    @native
    def handler(p, regs):  # type: ignore[no-untyped-def]
        emit(Texts(text=string(regs.di, 5)))

    machine.put(TEXT_AT, b"longer text\0\xffx\0end")
    for interpreted in (False, True):
        for offset in (0, 6, 12, 15, 100):
            call(handler, interpreted, di=TEXT_AT + offset)
        found = [event.text for event in machine.events]
        assert found == ["longe", " text", "\\xffx", None, None]
        machine.events.clear()
