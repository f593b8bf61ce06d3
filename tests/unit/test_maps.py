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
    Hash,
    Histogram,
    Machine,
    PerThread,
    Registers,
    Stats,
    emit,
    i8,
    i16,
    i64,
    native,
    u8,
    u64,
)  # fmt: skip
from sidestep.compiler.machine import on

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
    table = Hash(16, i8, i64)
    for key in (-3, 0, 5, 0):
        table[key] += -2
    table[5] = 9
    assert table.to_dict() == {-3: -2, 0: -4, 5: 9}
    assert (table[5], table[77], len(table), table.drops) == (9, 0, 3, 0)
    assert 0 in table
    assert 1 not in table
    assert set(table) == {-3, 0, 5}
    assert str(table).splitlines()[-1] == "[5]: 9"
    table.reset()
    assert all(value == 0 for value in table.to_dict().values())


def test_a_full_hash_counts_what_it_drops() -> None:
    table = Hash(8)
    for key in range(20):
        table[key] += 1
    assert len(table) == 9  # the key 0 has a place of its own
    assert table.drops == 11
    table[3] += 1
    assert (table[3], table.drops) == (2, 11)


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
