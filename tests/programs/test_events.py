"""Events hold what the program's functions were called with, in order, from the right thread and process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from harness.build import Builder
from harness.probing import attached
from harness.programs import counts, counts_by_pid, run_until_done
from harness.running import Outcome, Running
from sidestep import Text

Run = Callable[..., Running]

NOT_READABLE = "(fault)"


def trace(
    sidestep: ModuleType, running: Running, *probes: str, **options: object
) -> tuple[list[Any], Outcome]:
    """Runs a program that waits from its first wait to its second under probes: all their events."""
    running.expect("ready")
    with attached(sidestep, running.pid) as target:
        target.trace(*probes, **options)
        running.send()
        run_until_done(running)
    running.send()
    return list(target.events()), running.finish()


def test_arguments_of_every_kind(sidestep: ModuleType, build: Builder, run: Run) -> None:
    text = (
        "p:ten args:take_ten a=$arg1:s64 b=$arg2 c=$arg3 d=$arg4 e=$arg5 f=$arg6 g=$arg7 h=$arg8 "
        "i=$arg9:s64 j=$arg10:u8"
    )
    events, _ = trace(sidestep, run(build("args"), "4", "wait"), text)
    assert [event.name for event in events] == ["ten"] * 4
    assert [event.args for event in events] == [
        {"a": turn, "b": 2, "c": 3, "d": 4, "e": 5, "f": 6, "g": 7, "h": 8, "i": -9, "j": 10}
        for turn in range(4)
    ]


def test_small_types_are_cut_and_signed(sidestep: ModuleType, build: Builder, run: Run) -> None:
    text = "p:small args:take_small a=$arg1:s8 b=$arg2:u8 c=$arg3:s16 d=$arg4:u16 e=$arg5:s32 f=%r9:u32"
    events, _ = trace(sidestep, run(build("args"), "1", "wait"), text)
    assert events[0].args == {"a": -1, "b": 255, "c": -300, "d": 65535, "e": -100000, "f": 4000000000}


def test_structures_on_the_stack(sidestep: ModuleType, build: Builder, run: Run) -> None:
    text = "p:large args:take_large first=$stack1 last=$stack6 again=+48($stack):u64 all=+16($stack):u64[3]"
    events, _ = trace(sidestep, run(build("args"), "3", "wait"), text)
    assert [event.args for event in events] == [
        {"first": turn, "last": 6, "again": 6, "all": [2, 3, 4]} for turn in range(3)
    ]


def test_strings_and_what_cannot_be_read(sidestep: ModuleType, build: Builder, run: Run) -> None:
    text = "p:text args:take_string text=+0($arg1):string where=$arg1"
    events, _ = trace(sidestep, run(build("args"), "6", "wait"), text)
    texts = [event.args["text"] for event in events]
    assert texts[:4] == ["plain", "", "tab\tand \33[31mescape\33[0m", "\\xff\\xfe not UTF-8"]
    assert [str(value) for value in texts[4:]] == [NOT_READABLE] * 2
    assert events[4].args["where"] == 0


def test_bad_pointers_are_marked_and_the_program_lives(
    sidestep: ModuleType, build: Builder, run: Run
) -> None:
    text = "p:bad args:take_pointer value=+0($arg1):u64 deep=+8(+0($arg1)):u64"
    events, outcome = trace(sidestep, run(build("args"), "12", "wait"), text)
    assert outcome.status == 0, str(outcome)
    assert len(events) == 12
    assert {str(value) for event in events for value in event.args.values()} == {NOT_READABLE}


def test_long_strings_are_truncated_and_marked(sidestep: ModuleType, build: Builder, run: Run) -> None:
    """The first string of the program is `plain`."""
    running = run(build("args"), "1", "wait")
    events, _ = trace(sidestep, running, "p:text args:take_string text=+0($arg1):string", string_limit=3)
    cut = events[0].args["text"]
    assert isinstance(cut, Text)
    assert (cut, cut.truncated) == ("pla", True)


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        ("if value > 95", range(96, 100)),
        ("if value & 1 && value < 10", (1, 3, 5, 7, 9)),
        ("if value == 7 || value == 70", (7, 70)),
        ("if !(value >= 2)", (0, 1)),
    ],
)
def test_conditions(
    sidestep: ModuleType, build: Builder, run: Run, condition: str, wanted: tuple[int, ...]
) -> None:
    text = f"p:some count:work value=$arg1 {condition}"
    events, _ = trace(sidestep, run(build("count"), "100", "wait"), text)
    assert [event.args["value"] for event in events] == list(wanted)


def test_a_condition_does_not_change_the_hits(sidestep: ModuleType, build: Builder, run: Run) -> None:
    running = run(build("count"), "100", "wait")
    running.expect("ready")
    with attached(sidestep, running.pid) as target:
        (probe,) = target.trace("p:some count:work value=$arg1 if value > 89").probes
        running.send()
        run_until_done(running)
        assert (probe.hits, probe.matched, probe.lost) == (100, 10, 0)


def test_events_of_threads(sidestep: ModuleType, build: Builder, run: Run) -> None:
    """Each thread's events are in order; together they are as many as there were hits."""
    text = "p:work threads:work value=$arg1"
    events, outcome = trace(sidestep, run(build("threads"), "200", "wait"), text)
    assert len(events) == counts(outcome)["work"] == 1600
    by_thread: dict[int, list[int]] = {}
    for event in events:
        by_thread.setdefault(event.tid, []).append(event.args["value"])
    assert len(by_thread) == 8
    assert all(values == list(range(200)) for values in by_thread.values())
    times = [event.time for event in events]
    assert times == sorted(times)


def test_events_of_forked_children(sidestep: ModuleType, build: Builder, run: Run) -> None:
    """pid and tid are the child's own."""
    text = "p:work fork:work comm=$comm"
    events, outcome = trace(sidestep, run(build("fork"), "50", "wait"), text)
    assert Counter(event.pid for event in events) == counts_by_pid(outcome)["work"]
    assert all(event.tid == event.pid and event.args == {"comm": "fork"} for event in events)


def test_events_of_threads_with_thread_blocks_of_their_own(
    sidestep: ModuleType, build: Builder, run: Run
) -> None:
    """What a C library keeps of a thread, its tid among it, is not there."""
    size = 200
    probe = "p:call thread_blocks:work value=$arg1"
    events, outcome = trace(sidestep, run(build("thread_blocks"), str(size), "wait"), probe)
    assert len(events) == counts(outcome)["work"]
    for pid, number in counts_by_pid(outcome)["work"].items():
        tids = Counter(event.tid for event in events if event.pid == pid)
        assert sorted(tids.values()) == [size] * 4 + [3 * size]
        assert tids[pid] == 3 * size
        assert sum(tids.values()) == number


def test_events_of_one_thread_with_a_thread_block_of_its_own(
    sidestep: ModuleType, build: Builder, run: Run
) -> None:
    running = run(build("thread_blocks"), "200", "wait")
    events, _ = trace(sidestep, running, "p:call thread_blocks:work", tid=running.pid)
    assert {event.tid for event in events} == {running.pid}
    assert len(events) == 3 * 200


def test_the_stack_of_an_event(sidestep: ModuleType, build: Builder, run: Run) -> None:
    """With frame pointers the callers are found."""
    running = run(build("backtrace", "O0"), "2", "wait")
    events, _ = trace(sidestep, running, "p:inner backtrace:inner", stack=8)
    names = [name.partition("+")[0] for name in events[0].stack_symbols]
    assert names[:4] == ["inner", "middle", "outer", "main"]


def test_events_are_read_while_the_program_runs(sidestep: ModuleType, build: Builder, run: Run) -> None:
    running = run(build("count"), "50", "wait")
    running.expect("ready")
    with attached(sidestep, running.pid) as target:
        target.trace("p:work count:work value=$arg1")
        running.send()
        values = []
        for event in target.events(timeout=20):
            values.append(event.args["value"])
            if len(values) == 50:
                target.stop_events()
        assert values == list(range(50))
        assert running.next_line() is not None
    running.send()
    assert running.finish().status == 0


def test_a_full_ring_loses_events_and_says_so(sidestep: ModuleType, build: Builder, run: Run) -> None:
    """Nobody reads: hits stay exact, and what was not delivered was counted as lost."""
    running = run(build("count"), "3000000", "wait", time_limit=60)
    running.expect("ready")
    with attached(sidestep, running.pid) as target:
        (probe,) = target.trace("p:work count:work a=$arg1 b=$arg1 c=$arg1 d=$arg1").probes
        running.send()
        run_until_done(running)
        assert probe.hits == 3000000
    delivered = sum(1 for _ in target.events())
    assert probe.lost > 0
    assert delivered + probe.lost == probe.hits
    running.send()
    assert running.finish().status == 0


def test_events_of_a_probe_that_goes_are_delivered(sidestep: ModuleType, build: Builder, run: Run) -> None:
    running = run(build("count"), "300", "wait")
    running.expect("ready")
    with attached(sidestep, running.pid) as target:
        probes = target.trace("p:first count:work value=$arg1").probes
        running.send()
        run_until_done(running)
        target.unregister_kprobes(probes)
        # It gets the index of the one that went.
        target.trace("p:second count:work value=$arg1")
        events = [*target.events(timeout=0.05)]
        assert [event.args["value"] for event in events] == list(range(300))
        assert {event.name for event in events} == {"first"}
        assert (probes[0].hits, probes[0].lost, target.lost) == (300, 0, 0)
    running.send()
    assert running.finish().status == 0


def test_what_comes_behind_a_hole_is_delivered_at_the_end(sidestep: ModuleType, build: Builder) -> None:
    """The target ends with records in its rings that nobody finishes: no event behind them is held back, and
    what matched was delivered or is lost."""
    target = sidestep.launch([build("jumpsout_quietly")])
    probes = target.trace(
        "p:all jumpsout_quietly:work value=$arg1", "p:some jumpsout_quietly:work if $arg1 == 2"
    )
    events = Counter((event.name, event.args.get("value")) for event in target.events())
    target.detach()
    events.update((event.name, event.args.get("value")) for event in target.events())
    every, some = probes.probes
    assert events["all", 2] == events["some", None] == some.matched == 100
    assert events["all", 1] + 100 + every.lost == every.matched == every.hits
    assert (some.lost, target.lost) == (0, every.lost)
    assert target.wait(0).code == 0


def test_records_that_are_never_finished_hold_nobody_up(
    sidestep: ModuleType, build: Builder, run: Run
) -> None:
    """A thread that jumps out, or is killed, while it writes a record leaves a hole: what comes behind it is
    delivered all the same, and the hole counts as lost."""
    running = run(build("jumpsout"), "100000", "wait", time_limit=100)
    running.expect("ready")
    seen = 0
    with attached(sidestep, running.pid) as target:
        (probe,) = target.trace("jumpsout:work value=$arg1:u64").probes
        running.send()
        for _ in range(200):
            seen += sum(1 for _ in target.events(timeout=0.05))
            stream = target._stream
            if stream.reader.holes >= 3:
                break
        assert stream.reader.holes >= 3
        before = seen
        for _ in range(100):
            seen += sum(1 for _ in target.events(timeout=0.05))
            if seen > before:
                break
        assert seen > before
    left = sum(1 for _ in target.events())
    # A hit that was counted, and whose thread jumped out before it had a record, is no event.
    jumps = 20_000
    assert probe.hits - jumps <= seen + left + target.lost <= probe.hits
