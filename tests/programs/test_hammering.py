"""Probes come and go, within one session, in functions that threads execute all the time."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType

import pytest

from harness.build import Builder
from harness.probing import attached, probe_functions
from harness.programs import comparable, counts, place, run_until_done
from harness.running import Outcome, Running
from harness.stepper import disassemble
from harness.untouched import differences, read_state

Run = Callable[..., Running]
Bare = Callable[..., Outcome]

ROUNDS = 60
HAMMERED = {
    "threads": 20000000,
    "neighbours": 100000000,
    "signals": 1500,
    "forkthreads": 2000,
    "alloc": 2000000,
    "preempted": 200000000,
    "contexts_copied": 200000000,
    "faults": 1000,
    "fault_threads": 3000,
    "handlers": 20000,
}


@pytest.mark.parametrize("name", HAMMERED)
def test_registered_and_unregistered(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare, name: str
) -> None:
    """All functions and many of their instructions, in and out, while the program works."""
    size = HAMMERED[name]
    expected = bare(name, size)
    functions = {function for function in counts(expected) if ":" not in function}
    places = [
        place(name, instruction.function, instruction.offset)
        for instruction in disassemble(build(name), functions)
    ][:30]
    running = run(build(name), str(size), "wait", time_limit=90)
    running.expect("ready")
    running.send()
    line: str | None = ""
    rounds = 0
    with attached(sidestep, running.pid) as target:
        while line == "" and rounds < ROUNDS:
            probes = []
            for where in places[rounds % 3 :: 3]:
                try:
                    probes += target.count(where).probes
                except sidestep.ProbeError:
                    continue
            target.unregister_kprobes(probes)
            rounds += 1
            line = running.next_line(patience=0)
        if line != "done":
            run_until_done(running)
    running.send()
    outcome = running.finish()
    assert comparable(outcome) == comparable(expected), str(outcome)
    assert rounds > 0


def test_a_child_keeps_its_probes_when_neighbours_come_and_go(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare
) -> None:
    name = "forked_early"
    expected = bare(name)
    neighbours = [instruction.offset for instruction in disassemble(build(name), {"work"})][1:3]
    running = run(build(name), "wait")
    running.expect("ready")
    with attached(sidestep, running.pid) as target:
        (probe,) = target.count(place(name, "work")).probes

        def change_region() -> None:
            for offset in neighbours:
                (neighbour,) = target.count(place(name, "work", offset)).probes
                target.unregister_kprobe(neighbour)

        running.send()
        run_until_done(running, change_region)
        assert probe.hits == counts(expected)["work"]
    running.send()
    outcome = running.finish()
    assert comparable(outcome) == comparable(expected), str(outcome)


def test_probes_come_and_go_while_children_borrow_the_memory(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare
) -> None:
    """A child of vfork has our memory in its maps without being a process of its own."""
    name, size = "vfork", 3000
    expected = bare(name, size)
    running = run(build(name), str(size), "wait", time_limit=90)
    running.expect("ready")
    before = read_state(running.pid)
    line: str | None = ""
    with attached(sidestep, running.pid) as target:
        (probe,) = target.count(place(name, "work")).probes
        running.send()
        while line == "":
            (neighbour,) = target.count(place(name, "main")).probes
            target.unregister_kprobe(neighbour)
            line = running.next_line(patience=0)
        if line != "done":
            run_until_done(running)
        assert probe.hits == counts(expected)["work"]
    assert not differences(before, read_state(running.pid))
    running.send()
    outcome = running.finish()
    assert comparable(outcome) == comparable(expected), str(outcome)


def test_enabled_and_disabled(sidestep: ModuleType, build: Builder, run: Run, bare: Bare) -> None:
    """A disabled probe counts nothing; the counts of the enabled times add up to no more than all calls."""
    size = HAMMERED["threads"]
    running = run(build("threads"), str(size), "wait", time_limit=90)
    running.expect("ready")
    with attached(sidestep, running.pid) as target:
        (probe,) = target.count("threads:work").probes
        target.disable_kprobe(probe)
        running.send()
        line: str | None = ""
        while line == "":
            assert probe.disabled
            before = probe.hits
            time.sleep(0.002)
            assert probe.hits == before
            target.enable_kprobe(probe)
            time.sleep(0.002)
            target.disable_kprobe(probe)
            line = running.next_line(patience=0)
        if line != "done":
            run_until_done(running)
        assert 0 < probe.hits < 8 * size
    running.send()
    assert comparable(running.finish()) == comparable(bare("threads", size))


def test_a_probe_that_is_enabled_at_the_end_has_counted_all_since(
    sidestep: ModuleType, build: Builder, run: Run
) -> None:
    running = run(build("threads"), "1000", "wait")
    running.expect("ready")
    with attached(sidestep, running.pid) as target:
        probed = probe_functions(sidestep, target, "threads", ["work"])
        probe = probed.probes["work"]
        for _ in range(10):
            target.disable_kprobe(probe)
            target.enable_kprobe(probe)
        running.send()
        run_until_done(running)
        assert probe.hits == 8000
    running.send()
    assert running.finish().status == 0
