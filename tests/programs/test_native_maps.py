"""Maps in programs: keys of every kind, which come and go, and what Python does meanwhile."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

import sidestep as api
from harness.build import Builder
from harness.handlers import WORKER, Bare, Run, run_under, run_with
from harness.probing import attached
from harness.programs import comparable, counts, place, run_until_done
from sidestep import native, tid, u64


def test_a_full_hash_counts_what_it_drops(sidestep: ModuleType, build: Builder, run: Run) -> None:
    table = api.Hash(8)

    @native
    def handler(p, regs):  # type: ignore[no-untyped-def]
        table[regs.arg(0)] += 1

    name, size = "threads", 1000
    run_under(
        sidestep,
        run(build(name), str(size), "wait"),
        lambda target: target.kprobe(place(name, "work"))(handler),
        lambda: None,
    )
    assert sum(table.to_dict().values()) + table.drops == 8 * size
    assert set(table.to_dict().values()) == {8}
    assert table.drops


@pytest.mark.parametrize("deletable", [False, True])
def test_what_a_map_holds_goes_along_and_python_changes_it_in_one_step(
    sidestep: ModuleType, build: Builder, run: Run, deletable: bool
) -> None:
    limits, table = api.Array(4), api.Hash(16, deletable=deletable)
    limits[1], table[7] = 100, 5

    @native
    def handler(p, regs):  # type: ignore[no-untyped-def]
        table[7] += limits[1]

    name = "threads"

    def set_inside() -> None:
        with pytest.raises(TypeError, match=r"set\(key, n\)"):
            table[8] = 1
        table.set(8, 1)
        table.add(8, 2)
        table.set(9, 1)
        if deletable:
            del table[9]
        else:
            with pytest.raises(TypeError, match="deletable=True"):
                del table[9]

    probes: list[Any] = []
    run_under(
        sidestep,
        run(build(name), "8", "wait"),
        lambda target: probes.append(target.kprobe(place(name, "work"))(handler)),
        set_inside,
    )
    assert table.to_dict() == {7: 5 + 100 * probes[0].hits, 8: 3, **({} if deletable else {9: 1})}
    table.reset()
    assert not any(table.to_dict().values())


def test_stacks_are_kept_once(sidestep: ModuleType, build: Builder, run: Run, bare: Bare) -> None:
    stacks, hits = api.Stacks(), api.Hash(64)

    @native
    def handler(p, regs):  # type: ignore[no-untyped-def]
        hits[stacks.id()] += 1

    outcome, probes = run_with(sidestep, build, run, handler)
    assert comparable(outcome) == comparable(bare(WORKER)), str(outcome)
    assert sum(hits.to_dict().values()) == counts(bare(WORKER))["work"]
    assert all(stacks.frames(key)[0] == probes[0].addr for key in hits.to_dict())


class Pair(api.Struct):
    remainder: api.u8
    sign: api.i16


def test_keys_of_text_and_of_structures(sidestep: ModuleType, build: Builder, run: Run, bare: Bare) -> None:
    by_name, by_text, by_pair = api.Hash(8, api.string(15)), api.Hash(8, api.string(7)), api.Hash(64, Pair)

    @native
    def handler(p, regs):  # type: ignore[no-untyped-def]
        by_name[api.comm()] += 1
        by_pair[Pair(sign=-1, remainder=api.u8(regs.arg(0) % 5))] += regs.arg(0)
        if "never" in by_text:
            by_text["always"] += 1

    by_text["never"] = 3
    outcome, probes = run_with(sidestep, build, run, handler)
    assert comparable(outcome) == comparable(bare(WORKER)), str(outcome)
    hits = counts(bare(WORKER))["work"]
    assert probes[0].hits == hits
    assert by_name.to_dict() == {WORKER: hits}
    assert by_text.to_dict() == {"never": 3, "always": hits}
    sums = {rest: 8 * sum(range(rest, hits // 8, 5)) for rest in range(5)}
    assert by_pair.to_dict() == {Pair(remainder=rest, sign=-1): total for rest, total in sums.items()}
    assert by_pair[Pair(remainder=2, sign=-1)] == sums[2]


def test_text_of_the_target_as_a_key(sidestep: ModuleType, build: Builder, run: Run, bare: Bare) -> None:
    texts, seen = api.Hash(1024, api.string(32)), api.Counter()

    @native
    def handler(p, regs):  # type: ignore[no-untyped-def]
        texts[api.string(regs.sp, 32)] += 1
        seen.add(1)

    outcome, probes = run_with(sidestep, build, run, handler)
    assert comparable(outcome) == comparable(bare(WORKER)), str(outcome)
    assert probes[0].faults == 0
    assert sum(texts.to_dict().values()) == seen.value == probes[0].hits


@pytest.mark.parametrize("address", [0, 0x1000, 1 << 63])
def test_text_that_is_not_there_is_no_key(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare, address: int
) -> None:
    texts = api.Hash(8, api.string(32))

    @native
    def handler(p, regs):  # type: ignore[no-untyped-def]
        texts[api.string(u64(address), 32)] += 1

    outcome, probes = run_with(sidestep, build, run, handler)
    assert comparable(outcome) == comparable(bare(WORKER)), str(outcome)
    assert probes[0].faults == probes[0].hits == counts(bare(WORKER))["work"]
    assert texts.to_dict() == {}


@pytest.mark.parametrize("wide", [False, True], ids=["integers", "structures"])
def test_keys_that_come_and_go_under_many_threads(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare, wide: bool
) -> None:
    """Eight threads enter and take out keys of their own in the buckets of keys that stay; Python takes
    part."""
    numbers, pairs = api.Hash(64, deletable=True), api.Hash(64, Pair, deletable=True)
    table: Any = pairs if wide else numbers

    @native
    def by_number(p, regs):  # type: ignore[no-untyped-def]
        turn = regs.arg(0)
        numbers[turn & 7] += 1
        numbers[u64(1000) + turn * 64 + (u64(tid()) & 63)] += 1
        del numbers[u64(1000) + turn * 64 + (u64(tid()) & 63)]

    @native
    def by_pair(p, regs):  # type: ignore[no-untyped-def]
        turn = regs.arg(0)
        pairs[Pair(remainder=api.u8(turn & 7), sign=0)] += 1
        pairs[Pair(remainder=api.u8(turn), sign=1 + api.i16(tid() & 63))] += 1
        del pairs[Pair(remainder=api.u8(turn), sign=1 + api.i16(tid() & 63))]

    size = 20000
    running = run(build(WORKER), str(size), "wait")
    running.expect("ready")
    added = 0
    with attached(sidestep, running.pid) as target:
        probe = target.kprobe(place(WORKER, "work"))(by_pair if wide else by_number)
        running.send()
        while probe.hits < 8 * size or added < 100:
            key: Any = Pair(remainder=added & 7, sign=0) if wide else added & 7
            other: Any = Pair(remainder=added & 255, sign=-5) if wide else 7000000 + added
            table.add(key)
            table.set(other, 9)
            assert table[other] == 9
            del table[other]
            added += 1
        run_until_done(running)
    assert probe.faults == 0
    found = {key.remainder if wide else key: value for key, value in table.to_dict().items()}
    assert sorted(found) == [*range(8)]
    for key in range(8):
        assert found[key] == size + len(range(key, added, 8))
    assert not table.drops
    running.send()
    assert comparable(running.finish()) == comparable(bare(WORKER, size))


def test_a_map_of_another_session(sidestep: ModuleType, build: Builder, run: Run) -> None:
    counter = api.Counter()

    @native
    def handler(p, regs):  # type: ignore[no-untyped-def]
        counter.add(1)

    first, second = (run(build("threads"), "wait") for _ in range(2))
    first.expect("ready")
    second.expect("ready")
    with attached(sidestep, first.pid) as target:
        target.kprobe("threads:work")(handler)
        with attached(sidestep, second.pid) as other:
            with pytest.raises(sidestep.ProbeError, match="belongs to another session") as caught:
                other.kprobe("threads:work")(handler)
            assert caught.value.reason.name == "map-in-use"
            assert not other.probes
