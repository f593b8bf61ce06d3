"""Targets that change while they are probed: libraries come and go, children live on, others write code."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from harness.build import Builder, sources
from harness.probing import attached, probe_functions
from harness.programs import comparable, counts, counts_by_pid, run_until_done
from harness.running import Outcome, Running
from harness.stepper import base_address, disassemble
from harness.untouched import differences, read_areas, read_state, remains
from sidestep.session import DetachError
from sidestep.target.process.remains import clean

Run = Callable[..., Running]
Bare = Callable[..., Outcome]


def test_a_library_is_unloaded_under_its_probes(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare
) -> None:
    """It is loaded and unloaded thousands of times while controllers try to probe it."""
    size = sources()["dlclose"].long
    running = run(build("dlclose"), str(size), "wait", environment=build.environment("dlclose"))
    running.expect("ready")
    running.send()
    line: str | None = ""
    while line == "":
        with contextlib.suppress(sidestep.SidestepError), attached(sidestep, running.pid) as target:
            target.count("plugin:plugin_work", "dlclose:call_plugin")
            time.sleep(0.01)
        line = running.next_line(patience=0.001)
    if line != "done":
        run_until_done(running)
    running.send()
    outcome = running.finish()
    assert comparable(outcome) == comparable(bare("dlclose", size)), str(outcome)


def test_children_that_live_on_are_restored(sidestep: ModuleType, build: Builder, run: Run) -> None:
    """At detach every child still runs; its code and its mappings are as its parent's were at first."""
    running = run(build("fork"), "wait")
    running.expect("ready")
    before = read_state(running.pid)
    with attached(sidestep, running.pid) as target:
        probe_functions(sidestep, target, "fork", ["work"])
        running.send()
        run_until_done(running)
    pids = counts_by_pid(Outcome("\n".join(running.lines), "", 0))["work"]
    assert len(pids) == 6
    for pid in pids:
        assert not remains(before, read_state(pid)), f"in {pid}"
    running.send()
    assert running.finish().status == 0


def test_a_daemon_is_reached(sidestep: ModuleType, build: Builder, run: Run) -> None:
    """It was forked twice and has a session of its own."""
    running = run(build("forks"), "wait")
    running.expect("ready")
    before = read_state(running.pid)
    with attached(sidestep, running.pid) as target:
        (probe,) = target.count("forks:work").probes
        running.send()
        run_until_done(running)
        by_pid = counts_by_pid(Outcome("\n".join(running.lines), "", 0))["work"]
        assert probe.hits_by_pid == by_pid
        daemon = [*by_pid][-1]
    assert not remains(before, read_state(daemon))
    running.send()
    assert running.finish().status == 0


@pytest.mark.parametrize("name", ["count", "threads", "fork", "recursion"])
def test_no_page_is_writable_and_executable(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare, name: str
) -> None:
    """Neither while probes come, nor while they are there, nor while they go."""
    running = run(build(name), "wait")
    running.expect("ready")

    def check() -> None:
        both = [area for area in read_areas(running.pid) if area.executable and "w" in area.permissions]
        assert not both

    with attached(sidestep, running.pid) as target:
        check()
        probed = probe_functions(sidestep, target, name, ["main", *counts(bare(name))])
        check()
        target.unregister_kprobes(list(probed.probes.values()))
        check()
    check()
    running.send()
    run_until_done(running)
    running.send()
    assert running.finish().status == 0


def test_somebody_elses_breakpoint_is_respected(sidestep: ModuleType, build: Builder, run: Run) -> None:
    """A debugger has put an int3 there: it is not overwritten, and it stays."""
    program = build("redzone")
    running = run(program, "wait")
    running.expect("ready")
    first = disassemble(program, {"leaf"})[0]
    address = first.address + base_address(running.pid, program)
    with Path(f"/proc/{running.pid}/mem").open("r+b", buffering=0) as memory:
        memory.seek(address)
        original = memory.read(1)
        memory.seek(address)
        memory.write(b"\xcc")
        with attached(sidestep, running.pid) as target:
            with pytest.raises(sidestep.ProbeError) as refusal:
                target.count("redzone:leaf")
            assert refusal.value.reason.name in ("foreign-breakpoint", "foreign-bytes")
        memory.seek(address)
        assert memory.read(1) == b"\xcc"
        memory.seek(address)
        memory.write(original)
    running.send()
    run_until_done(running)
    running.send()
    assert running.finish().status == 0


def test_a_place_inside_an_instruction_is_refused(sidestep: ModuleType, build: Builder, run: Run) -> None:
    """Every address of a function that is no instruction's start; nothing is written."""
    program = build("redzone")
    instructions = disassemble(program, {"leaf"})
    starts = {instruction.offset for instruction in instructions}
    running = run(program, "wait")
    running.expect("ready")
    before = read_state(running.pid)
    with attached(sidestep, running.pid) as target:
        for offset in range(max(starts)):
            if offset not in starts:
                with pytest.raises(sidestep.ProbeError) as refusal:
                    target.count(f"redzone:leaf+{offset:#x}")
                assert refusal.value.reason.name == "not-a-boundary"
        assert before.code == read_state(running.pid).code
    running.send()
    run_until_done(running)
    running.send()
    assert running.finish().status == 0


def test_only_coroutines_run_when_it_ends(sidestep: ModuleType, build: Builder, run: Run) -> None:
    """No stack can be borrowed to give the memory back: the code is restored, and the rest is said."""
    name = "coroutine_only"
    running = run(build(name), "wait")
    running.expect("ready")
    before = read_state(running.pid)
    target = sidestep.attach(running.pid)
    (probe,) = target.count(f"{name}:work").probes
    running.send()
    running.expect("blocking")
    with pytest.raises(DetachError, match="its code is as it was, but memory of ours stays there"):
        target.detach()
    assert probe.hits == 0
    assert read_state(running.pid).code == before.code
    running.send()
    running.expect("blocking")
    running.send()
    assert run_until_done(running)
    assert clean(running.pid).complete
    assert not differences(before, read_state(running.pid))
    running.send()
    assert running.finish().status == 0


def test_a_program_of_coroutines_is_refused(sidestep: ModuleType, build: Builder, run: Run) -> None:
    name = "coroutine_only"
    running = run(build(name), "wait")
    running.expect("ready")
    running.send()
    running.expect("blocking")
    before = read_state(running.pid)
    with pytest.raises(sidestep.TargetError) as refusal, attached(sidestep, running.pid) as target:
        target.count(f"{name}:work")
    assert refusal.value.reason.name == sources()[name].refused
    assert not differences(before, read_state(running.pid))
