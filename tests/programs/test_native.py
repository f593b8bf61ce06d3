"""Native handlers in programs: exact figures, and programs that run as without them."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import sidestep as api
from harness.build import Builder
from harness.probing import attached
from harness.programs import comparable, counts, place, run_until_done
from harness.running import Outcome, Running
from sidestep import emit, native, read_u8, read_u64, tid, u64
from sidestep.target.process.process import Process

Run = Callable[..., Running]
Bare = Callable[..., Outcome]


ROUNDS = 8


class Maps:
    """One of each kind, and a handler that adds the first argument of each hit to all."""

    def __init__(self) -> None:
        counter, stats, powers = api.Counter(), api.Stats(), api.Histogram()
        steps = api.Histogram(linear=(0, 64, 8))
        array, table, threads = api.Array(4), api.Hash(64), api.PerThread(1024)
        self.counter, self.stats, self.powers, self.steps = counter, stats, powers, steps
        self.array, self.table, self.threads = array, table, threads

        @native
        def handler(p, regs):  # type: ignore[no-untyped-def]
            value = regs.arg(0)
            counter.add(1)
            stats.add(value)
            powers.add(value)
            steps.add(value)
            array[value & 3] += 1
            table[value & 31] += 1
            threads.add(1)

        self.handler = handler

    @property
    def totals(self) -> dict[str, int]:
        """How many hits each map has seen."""
        return {
            "counter": self.counter.value,
            "stats": self.stats.count,
            "powers": self.powers.count,
            "steps": self.steps.count,
            "array": sum(self.array.to_list()),
            "table": sum(self.table.to_dict().values()),
            "threads": sum(self.threads.to_dict().values()),
        }


class Happened(api.Event):
    value: u64
    thread: api.u32
    small: api.i8


def nothing_left(pid: int) -> bool:
    """Whether no memory of ours is mapped."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    foreign = [line for line in maps if re.search(r" r-xp 0+ 00:00 0 *$", line)]
    return not foreign and not any("sidestep" in line for line in maps)


def run_under(
    sidestep: ModuleType, running: Running, probe: Callable[[Any], object], while_there: Callable[[], object]
) -> Outcome:
    """A program from its first wait to its second with what `probe` registers."""
    running.expect("ready")
    with attached(sidestep, running.pid) as target:
        probe(target)
        running.send()
        run_until_done(running)
        while_there()
    assert nothing_left(running.pid)
    running.send()
    return running.finish()


WORKER = "threads"


def run_with(sidestep: ModuleType, build: Builder, run: Run, handler: Any) -> tuple[Outcome, list[Any]]:
    """The outcome of WORKER with a handler at its function `work`, and the probe."""
    probes: list[Any] = []
    outcome = run_under(
        sidestep,
        run(build(WORKER), "wait"),
        lambda target: probes.append(target.kprobe(place(WORKER, "work"))(handler)),
        lambda: None,
    )
    return outcome, probes


@pytest.mark.parametrize(("name", "size"), [("threads", 200000), ("forkthreads", 400)])
def test_sums_are_exact(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare, name: str, size: int
) -> None:
    """Under many threads, and in the children that they fork."""
    expected, maps, probes = bare(name, size), Maps(), []

    def register(target: Any) -> None:
        probes.append(target.kprobe(place(name, "work"))(maps.handler))

    def check() -> None:
        (probe,) = probes
        assert maps.totals == dict.fromkeys(maps.totals, counts(expected)["work"])
        assert (probe.hits, probe.faults) == (counts(expected)["work"], 0)

    outcome = run_under(sidestep, run(build(name), str(size), "wait"), register, check)
    assert comparable(outcome) == comparable(expected), str(outcome)
    assert maps.totals == dict.fromkeys(maps.totals, counts(expected)["work"])  # kept after the session
    if name == "threads":
        assert maps.stats.to_dict() == {
            "count": 8 * size, "sum": 8 * sum(range(size)), "min": 0, "max": size - 1,
            "mean": sum(range(size)) / size,
        }  # fmt: skip
        assert maps.array.to_list() == [2 * size] * 4
        assert sorted(maps.threads.to_dict().values()) == [size] * 8
    assert not maps.table.drops


def test_events_are_delivered_or_counted_as_lost(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare
) -> None:
    name, size = "threads", 50000
    emitted = api.Counter()

    @native
    def handler(p, regs):  # type: ignore[no-untyped-def]
        emit(Happened(value=regs.arg(0), small=api.i8(regs.arg(0)), thread=tid()))
        emitted.add(1)

    running = run(build(name), str(size), "wait")
    running.expect("ready")
    with attached(sidestep, running.pid) as target:
        target.kprobe(place(name, "work"))(handler)
        running.send()
        run_until_done(running)
        events = list(target.events(timeout=0))
    events += target.events()
    assert emitted.value == 8 * size
    assert len(events) + target.lost == 8 * size
    assert events
    for event in events:
        assert (event.args["value"] ^ event.args["small"]) & 0xFF == 0
        assert event.args["thread"] == event.tid
    running.send()
    assert comparable(running.finish()) == comparable(bare(name, size))


def test_threads_with_thread_blocks_of_their_own(sidestep: ModuleType, build: Builder, run: Run) -> None:
    name, size = "thread_blocks", 300
    by_tid, calls = api.Hash(64), api.Counter()

    @native
    def handler(p, regs):  # type: ignore[no-untyped-def]
        by_tid[api.u64(tid())] += 1
        calls.add(1)
        emit(Happened(value=regs.arg(0), small=api.i8(0), thread=tid()))

    running = run(build(name), str(size), "wait")
    running.expect("ready")
    with attached(sidestep, running.pid) as target:
        probe = target.kprobe(place(name, "work"))(handler)
        running.send()
        run_until_done(running)
    running.send()
    number = counts(running.finish())["work"]
    events = list(target.events())
    assert (calls.value, probe.hits, len(events)) == (number, number, number)
    assert sorted(by_tid.to_dict().values()) == [size] * 8 + [3 * size] * 2
    assert all(event.tid == event.args["thread"] for event in events)
    assert Counter(event.tid for event in events) == by_tid.to_dict()


def test_a_function_is_skipped_and_returns_what_the_handler_says(
    sidestep: ModuleType, build: Builder, run: Run
) -> None:
    @native
    def handler(p, regs):  # type: ignore[no-untyped-def]
        regs.ax = regs.arg(0) // 2
        regs.ip = regs.return_address
        regs.sp += 8
        return 1

    name, size = "threads", 30000
    probes: list[Any] = []
    outcome = run_under(
        sidestep,
        run(build(name), str(size), "wait"),
        lambda target: probes.append(target.kprobe(place(name, "work"))(handler)),
        lambda: None,
    )
    others = sum(turn // (thread + 1) + 3 for thread in range(8) for turn in range(size))
    total = sum(range(8)) + others + 8 * sum(turn // 2 for turn in range(size))
    assert re.search(r"^sum (-?\d+)$", outcome.output, re.M)[1] == str(total)  # type: ignore[index]
    assert (probes[0].hits, probes[0].faults) == (8 * size, 0)


PRESERVED = {
    "vectors": 20000, "flags": 20, "redzone": None, "sse": None, "x87": None, "direction": None, "abi": None,
    "stackalign": None, "ret_imm16": None, "sigaltstack": None, "coroutines": None,
}  # fmt: skip


@pytest.mark.parametrize("name", PRESERVED)
def test_registers_are_as_the_program_left_them(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare, name: str
) -> None:
    """A handler that uses all that there is, on every function that the program counts."""
    size = PRESERVED[name]
    program, expected, maps = build(name), bare(name, size), Maps()
    inner, divided = maps.handler, maps.counter

    @native
    def handler(p, regs):  # type: ignore[no-untyped-def]
        inner(p, regs)
        if read_u64(regs.sp) != regs.return_address:
            emit(Happened(value=regs.flags, thread=tid(), small=3))
        for turn in range(3):
            divided.add(u64(turn) // (regs.r15 | 1))

    probes: dict[str, Any] = {}

    def register(target: Any) -> None:
        for function in counts(expected):
            if ":" not in function:
                try:
                    probes[function] = target.kprobe(place(name, function))(handler)
                except sidestep.ProbeError:
                    continue

    words = [program, *([] if size is None else [str(size)]), "wait"]
    outcome = run_under(sidestep, run(*words), register, lambda: None)
    assert comparable(outcome) == comparable(expected), str(outcome)
    assert probes
    for function, probe in probes.items():
        assert probe.hits == counts(expected)[function]
        assert probe.faults == 0


BAD = {"null": 0, "unmapped": 0x1000, "non-canonical": 1 << 63, "kernel": (1 << 64) - 4096}


@pytest.mark.parametrize("name", ["threads", "signals", "fault", "late_handler"])
@pytest.mark.parametrize("address", BAD.values(), ids=BAD)
def test_bad_reads_end_the_handler(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare, name: str, address: int
) -> None:
    """Programs with and without handlers of their own for the signal that a bad read would raise."""
    before, behind = api.Counter(), api.Counter()

    @native
    def handler(p, regs):  # type: ignore[no-untyped-def]
        before.add(1)
        behind.add(read_u64(address) | 1)

    expected = bare(name)
    probes: dict[str, Any] = {}

    def register(target: Any) -> None:
        for function in counts(expected):
            if ":" not in function:
                try:
                    probes[function] = target.kprobe(place(name, function))(handler)
                except sidestep.ProbeError:
                    continue

    def check() -> None:
        assert all(probe.faults == probe.hits for probe in probes.values())
        assert before.value == sum(probe.hits for probe in probes.values())
        assert behind.value == 0

    outcome = run_under(sidestep, run(build(name), "wait"), register, check)
    assert comparable(outcome) == comparable(expected), str(outcome)


def test_memory_that_comes_and_goes_is_read_or_counted(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare
) -> None:
    """The argument of `touch` lies in a page without any permission at each call."""
    read = api.Counter()

    @native
    def handler(p, regs):  # type: ignore[no-untyped-def]
        read.add(u64(read_u8(regs.arg(0))) | 1)

    name = "fault"
    expected = bare(name)
    probes: list[Any] = []

    def register(target: Any) -> None:
        for function in ("touch", "touch_first"):
            try:
                probes.append(target.kprobe(place(name, function))(handler))
            except sidestep.ProbeError:
                continue

    def check() -> None:
        assert all(probe.faults == probe.hits for probe in probes)

    outcome = run_under(sidestep, run(build(name), "wait"), register, check)
    assert comparable(outcome) == comparable(expected), str(outcome)
    assert read.value == 0


@pytest.mark.parametrize(
    ("name", "size", "functions"),
    [("hammered", 0, ("f_000", "called")), ("forkthreads", 2000, ("work", "in_child"))],
)
def test_handlers_come_and_go(
    sidestep: ModuleType, build: Builder, run: Run, name: str, size: int, functions: tuple[str, ...]
) -> None:
    """Inlined ones, called ones, and such as call routines, while threads are in them."""
    counter, table = api.Counter(), api.Hash(64)

    @native
    def short(p, regs):  # type: ignore[no-untyped-def]
        counter.add(1)

    @native
    def long(p, regs):  # type: ignore[no-untyped-def]
        counter.add(1)
        table[regs.arg(0) & 15] += u64(read_u8(regs.sp)) & 1
        if regs.arg(0) & 0xFFF == 0:
            emit(Happened(value=regs.arg(0), thread=tid(), small=0))

    running = run(build(name), str(size), "wait", time_limit=90)
    running.expect("ready")
    hits = 0
    with attached(sidestep, running.pid) as target:

        def come_and_go() -> int:
            places = [place(name, function) for function in functions]
            probes = [api.Kprobe(where, pre_handler=each) for where in places for each in (short, long)]
            target.register_kprobes(probes)
            target.unregister_kprobes(probes)
            return sum(probe.hits for probe in probes)

        come_and_go()  # the handlers are compiled
        running.send()
        for _ in range(ROUNDS):
            hits += come_and_go()
        if size == 0:
            running.send()
        run_until_done(running)
        assert counter.value == hits
    assert nothing_left(running.pid)
    running.send()
    outcome = running.finish()
    assert outcome.status == 0, str(outcome)
    assert "wrong 0" in outcome.output, str(outcome)
    assert hits
    assert counter.value == hits


SCRIPT = """
import sys
print("ready", flush=True); sys.stdin.readline()
table = {str(n): [n] * (n % 50) for n in range(20000)}
print(sum(map(len, table.values())), sorted(table)[:5], flush=True)
print("done", flush=True); sys.stdin.readline()
"""


def test_one_handler_on_all_functions_of_libc(sidestep: ModuleType, run: Run, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    running = run(sys.executable, script)
    running.expect("ready")
    counter, by_place = api.Counter(), api.Hash(8192)

    @native
    def handler(p, regs):  # type: ignore[no-untyped-def]
        counter.add(1)
        by_place[p.addr] += 1

    with attached(sidestep, running.pid) as target:
        batch = target.kprobe("libc:*")(handler)
        assert len(batch.probes) > 1000
        running.send()
        running.expect(f"{sum(n % 50 for n in range(20000))} ['0', '1', '10', '100', '1000']")
        running.expect("done")
        target.enabled = False
        hits = {probe.addr: probe.hits for probe in batch.probes if probe.hits}
        assert counter.value == sum(probe.hits for probe in batch.probes)
        assert by_place.to_dict() == hits
        assert not sum(probe.faults for probe in batch.probes)
    assert nothing_left(running.pid)
    running.send()
    assert running.finish().status == 0


def test_no_function_is_skipped_where_returns_are_checked(
    sidestep: ModuleType, build: Builder, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    @native
    def handler(p, regs):  # type: ignore[no-untyped-def]
        regs.ip = regs.return_address
        regs.sp += 8
        return 1

    monkeypatch.setattr(Process, "has_shadow_stack", True)
    running = run(build("threads"), "wait")
    running.expect("ready")
    with attached(sidestep, running.pid) as target:
        with pytest.raises(sidestep.ProbeError, match="shadow stack"):
            target.kprobe("threads:work")(handler)
        assert not target.probes


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


def test_a_loop_without_end_is_ended(sidestep: ModuleType, build: Builder, run: Run, bare: Bare) -> None:
    @native(fuel=100)
    def handler(p, regs):  # type: ignore[no-untyped-def]
        while True:
            pass

    outcome, probes = run_with(sidestep, build, run, handler)
    assert comparable(outcome) == comparable(bare(WORKER)), str(outcome)
    assert probes[0].faults == probes[0].hits == counts(bare(WORKER))["work"]


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


def test_only_the_flags_of_arithmetic_are_changed(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare
) -> None:
    """The trap flag would end the program, alignment checks, too."""

    @native
    def handler(p, regs):  # type: ignore[no-untyped-def]
        regs.flags = regs.flags | 0x40000 | 0x100 | 0x41

    name = "threads"
    outcome = run_under(
        sidestep,
        run(build(name), "wait"),
        lambda target: target.kprobe(place(name, "work"))(handler),
        lambda: None,
    )
    assert comparable(outcome) == comparable(bare(name)), str(outcome)


def test_a_handler_behind_a_record_sees_the_arguments(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare
) -> None:
    """Recording uses rcx and rdx; a second handler sees what the first has changed."""
    seen, changed = api.Hash(64), api.Counter()

    @native
    def first(p, regs):  # type: ignore[no-untyped-def]
        seen[regs.arg(2) & 7] += 1
        regs.cx = 4242

    @native
    def second(p, regs):  # type: ignore[no-untyped-def]
        if regs.arg(3) == 4242:
            changed.add(1)

    name = "sums"
    probes: list[Any] = []

    def probe(target: Any) -> None:
        target.trace(f"{place(name, 'sum_of_four')} c=$arg3:u64")
        probes.append(target.kprobe(place(name, "sum_of_four"))(first))
        probes.append(target.kprobe(place(name, "sum_of_four"))(second))

    outcome = run_under(sidestep, run(build(name), "wait"), probe, lambda: None)
    true = counts(bare(name))["sum_of_four"]
    assert counts(outcome)["sum_of_four"] == true
    assert seen.to_dict() == {3: true}
    assert changed.value == true == probes[1].hits


@pytest.mark.parametrize("offset", [-8, -4096, 1 << 40])
def test_a_stack_pointer_that_no_return_gives_is_a_fault(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare, offset: int
) -> None:
    @native
    def handler(p, regs):  # type: ignore[no-untyped-def]
        regs.ip = regs.return_address
        regs.sp += u64(offset)
        return 1

    outcome, probes = run_with(sidestep, build, run, handler)
    assert comparable(outcome) == comparable(bare(WORKER)), str(outcome)
    assert probes[0].faults == probes[0].hits == counts(bare(WORKER))["work"]


def test_words_behind_the_end_of_a_stack_are_a_fault(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare
) -> None:
    @native
    def handler(p, regs):  # type: ignore[no-untyped-def]
        assert regs.stack(0) != 0
        assert regs.stack(60000) != 1

    outcome, probes = run_with(sidestep, build, run, handler)
    assert comparable(outcome) == comparable(bare(WORKER)), str(outcome)
    assert probes[0].hits == counts(bare(WORKER))["work"]


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
        while probe.hits < 8 * size:
            key: Any = Pair(remainder=added & 7, sign=0) if wide else added & 7
            other: Any = Pair(remainder=added & 255, sign=-5) if wide else 7000000 + added
            table.add(key)
            table.set(other, 9)
            assert table[other] == 9
            del table[other]
            added += 1
        run_until_done(running)
    assert added
    assert probe.faults == 0
    found = {key.remainder if wide else key: value for key, value in table.to_dict().items()}
    assert sorted(found) == [*range(8)]
    for key in range(8):
        assert found[key] == size + len(range(key, added, 8))
    assert not table.drops
    running.send()
    assert comparable(running.finish()) == comparable(bare(WORKER, size))


class Traced(api.Event):
    size: u64
    callers: api.stack(6)  # type: ignore[valid-type]


def test_an_event_with_a_backtrace(sidestep: ModuleType, build: Builder, run: Run, bare: Bare) -> None:
    @native
    def handler(p, regs):  # type: ignore[no-untyped-def]
        emit(Traced(callers=api.stack(4), size=regs.arg(0)))

    running = run(build("backtrace"), "wait")
    running.expect("ready")
    functions = [name for name in counts(bare("backtrace")) if ":" not in name]
    with attached(sidestep, running.pid) as target:
        for name in functions:
            target.kprobe(place("backtrace", name))(handler)
        running.send()
        run_until_done(running)
        events = list(target.events(timeout=0))
    assert events
    for event in events:
        assert event.args["callers"] == event.stack
        assert 1 <= len(event.stack) <= 4
        assert event.stack_symbols[0].split("+")[0] in functions
    assert max(len(event.stack) for event in events) >= 2
    running.send()
    assert comparable(running.finish()) == comparable(bare("backtrace"))


def stepped(value: int, *, adds: bool, compares: bool, counts_one: bool = True) -> int:
    """What the function of skips.c gives if these of its instructions are executed."""
    result = value + 1000 if adds else value
    if (value < 5) if compares else (result < 0):
        return result
    return result + 7 + (1 if counts_one else 0)


@native
def leave_out_the_addition(p, regs):  # type: ignore[no-untyped-def]
    if regs.di & 1 != 0:
        regs.ip = p.addr + 6
        return 1
    return 0


@native
def by_length(regs, length: u64):  # type: ignore[no-untyped-def]
    regs.ip += length
    return 1


@native
def leave_out_the_comparison(p, regs):  # type: ignore[no-untyped-def]
    return by_length(regs, 4)


@native
def leave_out_what_is_above_the_red_zone(p, regs):  # type: ignore[no-untyped-def]
    if regs.di & 1 != 0:
        regs.ip = p.addr + 4
    else:
        regs.ip = p.addr + 5
    return 1


SKIPS = [
    (3, leave_out_the_addition, lambda value: stepped(value, adds=not value & 1, compares=True)),
    (9, leave_out_the_comparison, lambda value: stepped(value, adds=True, compares=False)),
    (24, leave_out_what_is_above_the_red_zone,
     lambda value: stepped(value, adds=True, compares=True, counts_one=False)),
]  # fmt: skip


@pytest.mark.parametrize(("offset", "handler", "expected"), SKIPS, ids=["addition", "comparison", "red zone"])
@pytest.mark.parametrize("others", [False, True], ids=["alone", "among others"])
def test_instructions_are_left_out(
    sidestep: ModuleType, build: Builder, run: Run, offset: int, handler: Any, expected: Any, others: bool
) -> None:
    """Flags and the red zone are as they were; probes on the way are hit as often as control arrives at
    them."""
    name, size = "skips", 3000
    probes: dict[int, Any] = {}
    counted: dict[int, Any] = {}

    def probe(target: Any) -> None:
        if others:
            for each in (0, 3, 9, 13, 15, 24, 28, 29):
                try:
                    counted[each] = target.kprobe(place(name, "stepped", each))(Maps().handler)
                except sidestep.ProbeError:
                    continue
        probes[offset] = target.kprobe(place(name, "stepped", offset))(handler)

    outcome = run_under(sidestep, run(build(name), str(size), "wait"), probe, lambda: None)
    values = range(-size // 2, size // 2)
    total = sum(expected(value) * (turn % 7 + 1) for turn, value in enumerate(values))
    assert f"sum {total}" in outcome.output.splitlines(), str(outcome)
    assert probes[offset].faults == 0
    arrived = size if offset < 15 else sum(value >= 5 for value in values)
    assert probes[offset].hits == arrived
    assert counted or not others
    for each, other in counted.items():
        if each <= 3 or offset == 24:
            assert other.hits == (size if each <= 9 else other.hits)


def test_places_that_a_handler_cannot_go_on_at(sidestep: ModuleType, build: Builder, run: Run) -> None:
    @native
    def anywhere(p, regs):  # type: ignore[no-untyped-def]
        regs.ip = regs.di
        return 1

    @native
    def inside(p, regs):  # type: ignore[no-untyped-def]
        regs.ip = p.addr + 2
        return 1

    @native
    def lowered(p, regs):  # type: ignore[no-untyped-def]
        regs.ip = p.addr + 6
        regs.sp += 8
        return 1

    running = run(build("skips"), "wait")
    running.expect("ready")
    with attached(sidestep, running.pid) as target:
        for handler, why in (
            (anywhere, r"must set regs\.ip to p\.addr plus a known number"),
            (inside, r"the end of an instruction that moves: 6"),
            (lowered, r"cannot change regs\.sp"),
        ):
            with pytest.raises(sidestep.ProbeError, match=why):
                target.kprobe(place("skips", "stepped", 3))(handler)
    running.send()
    run_until_done(running)
    running.send()
    running.finish()


def faulting() -> list[tuple[Any, str]]:
    """Handlers whose every run ends early, with what is said about it. `line` is that of the def."""
    array = api.Array(4)

    @native
    def reads(p, regs):  # type: ignore[no-untyped-def]
        regs.ax = read_u64(8)

    @native
    def reads_far(p, regs):  # type: ignore[no-untyped-def]
        regs.ax = u64(read_u8(u64(1) << 63))

    @native
    def writes(p, regs):  # type: ignore[no-untyped-def]
        api.write_u16(p.addr, 1)

    @native
    def divides(p, regs):  # type: ignore[no-untyped-def]
        regs.ax = regs.di // (regs.di - regs.di)

    @native
    def asserts(p, regs):  # type: ignore[no-untyped-def]
        assert regs.sp == 0, "the stack is somewhere"

    @native
    def asserts_silently(p, regs):  # type: ignore[no-untyped-def]
        assert regs.sp == 0

    @native
    def loops(p, regs):  # type: ignore[no-untyped-def]
        while True:
            pass

    @native
    def goes_nowhere(p, regs):  # type: ignore[no-untyped-def]
        regs.ip = p.addr
        return 1

    @native
    def compares(p, regs):  # type: ignore[no-untyped-def]
        assert api.string(u64(16), 8) == "text"

    @native
    def leaves_the_array(p, regs):  # type: ignore[no-untyped-def]
        array[4] += 1

    return [
        (reads, r"\+2: u64 cannot be read at 0x8"),
        (reads_far, r"\+2: u8 cannot be read at an impossible address"),
        (writes, r"\+2: u16 cannot be written at 0x[0-9a-f]+"),
        (divides, r"\+2: division by zero"),
        (asserts, r"\+2: the stack is somewhere"),
        (asserts_silently, r"\+2: `regs\.sp == 0` does not hold"),
        (loops, r"\+2: out of fuel"),
        (goes_nowhere, r"it returned true, but set regs\.ip to no place where it can go on"),
        (compares, r"\+2: text cannot be read at 0x10"),
        (leaves_the_array, r"\+2: `index < self\.size` does not hold"),
    ]


FAULTING = faulting()


@pytest.mark.parametrize(("handler", "why"), FAULTING, ids=[handler.__name__ for handler, _ in FAULTING])
def test_a_fault_says_where_and_why(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare, handler: Any, why: str
) -> None:
    running = run(build(WORKER), "20", "wait")
    running.expect("ready")
    with attached(sidestep, running.pid) as target:
        probe = target.kprobe(place(WORKER, "work"))(handler)
        assert probe.last_fault is None
        running.send()
        run_until_done(running)
        line = handler.function.__code__.co_firstlineno + 1
        wanted = why.replace(r"\+2", f"{Path(__file__).name}:{line + 1}", 1)
        assert re.fullmatch(wanted, str(probe.last_fault)), probe.last_fault
        live = probe.last_fault
    assert (probe.faults, probe.last_fault) == (probe.hits, live)
    running.send()
    assert comparable(running.finish()) == comparable(bare(WORKER, 20))
