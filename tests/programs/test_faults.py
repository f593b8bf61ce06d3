"""The program's own handlers for faults, where instructions that may fault were moved."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harness.build import Builder
from harness.probing import attached, launcher
from harness.programs import READY, comparable, counts, place, run_until_done
from harness.running import Outcome, Running
from harness.stepper import disassemble
from harness.untouched import differences, read_state, remains
from programs.test_controller_dies import STAYING, clean, kill, start_controller

Run = Callable[..., Running]
Bare = Callable[..., Outcome]

HANDLING = ["fault", "faults", "faults_later", "handlers", "fault_backtrace", "fault_throw", "fault_threads"]
# What cannot move whatever the program does about faults.
OTHERWISE = {
    "not-relocatable",
    "too-short",
    "call-in-region",
    "jump-into-region",
    "landing-pad",
    "indirect-jump",
    "unreachable",
}


def family(pid: int) -> Iterator[int]:
    """A process and its children."""
    yield pid
    yield from map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def every_place(program: Path, name: str, functions: set[str]) -> list[str]:
    return [place(name, each.function, each.offset) for each in disassemble(program, functions)]


def probe_all(sidestep: ModuleType, target: Any, places: list[str]) -> set[str]:
    """Why some were refused."""
    refused = set()
    for where in places:
        try:
            target.count(where)
        except sidestep.ProbeError as error:
            # A name with a star in it counts as a glob.
            is_glob = error.reason.name == "nothing-left"
            refused.add(error.detail if is_glob and "may fault" in error.detail else error.reason.name)
    return refused - {"nothing-left"}


@pytest.mark.parametrize("way", ["default", "static", "static-pie", "O0", "O3", "cet"])
@pytest.mark.parametrize("name", HANDLING)
def test_nothing_is_refused_for_its_faults(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare, name: str, way: str
) -> None:
    expected = bare(name, None, way)
    program = build(name, way)
    running = run(program, "wait")
    running.expect(READY)
    before = read_state(running.pid)
    with attached(sidestep, running.pid) as target:
        refused = probe_all(sidestep, target, every_place(program, name, set(counts(expected))))
        running.send()
        assert run_until_done(running)
        # /proc/PID/status shows that handlers are there, ours or not.
        assert read_state(running.pid).threads[running.pid]["SigCgt"] != "0" * 16
    assert not remains(before, read_state(running.pid))
    running.send()
    outcome = running.finish()
    assert comparable(outcome) == comparable(expected), str(outcome)
    assert refused <= OTHERWISE


@pytest.mark.parametrize("way", ["musl", "musl-static"])
def test_where_handlers_cannot_be_guarded_instructions_that_may_fault_do_not_move(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare, way: str
) -> None:
    """musl's signal return path has no unwind entry: unwinders know it by its bytes only."""
    expected = bare("fault", None, way)
    running = run(build("fault", way), "wait")
    running.expect(READY)
    with attached(sidestep, running.pid) as target:
        with pytest.raises(sidestep.ProbeError) as refusal:
            target.count(place("fault", "touch_first"))
        assert refusal.value.reason.name == "may-fault"
        running.send()
        run_until_done(running)
    running.send()
    assert comparable(running.finish()) == comparable(expected)


def test_handlers_that_the_program_installs_by_itself(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare
) -> None:
    expected = bare("own_installer")
    running = run(build("own_installer"), "wait")
    running.expect(READY)
    with attached(sidestep, running.pid) as target:
        (probe,) = target.count(place("own_installer", "work")).probes
        with pytest.raises(sidestep.ProbeError) as refusal:
            target.count(place("own_installer", "load"))
        assert refusal.value.reason.name == "may-fault"
        running.send()
        assert run_until_done(running)
        assert probe.hits == counts(expected)["work"]
    running.send()
    assert comparable(running.finish()) == comparable(expected)


def test_hooks_are_no_probes(sidestep: ModuleType, build: Builder, run: Run) -> None:
    """They are not listed and take no counter that is shown; what they stand on cannot be probed."""
    running = run(build("fault"), "wait")
    running.expect(READY)
    with attached(sidestep, running.pid) as target:
        target.count(place("fault", "touch"))
        assert len(target.list().splitlines()) == len(target.probes) == 1
        assert len(sidestep.sessions_text(running.pid).splitlines()) == 2
        hooks = target._engine.hooks
        assert len(hooks) == 2
        for hook in hooks:
            for address in (hook.start, hook.end - 2):
                with pytest.raises(sidestep.ProbeError) as refusal:
                    target.register_kprobe(sidestep.Kprobe(addr=address))
                assert refusal.value.reason.name in ("blacklisted", "not-a-boundary")
    running.send()
    running.send()
    assert running.finish().status == 0


@pytest.mark.parametrize("name", ["faults", "handlers", "fault_threads", "fault_waits", "fault_child"])
def test_the_controller_is_killed(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare, name: str
) -> None:
    """Handlers are guarded without it, and are themselves again when what it left was taken away."""
    expected = bare(name)
    places = [place(name, function) for function in counts(expected)]
    running = run(build(name), "wait")
    running.expect(READY)
    before = read_state(running.pid)
    controller = start_controller(STAYING, running, places)
    assert controller.stdout is not None
    controller.stdout.readline()
    kill(controller)
    if name in ("faults", "handlers"):  # the others: what is left is taken away before their work
        running.send()
        assert run_until_done(running)
        clean(running)
        assert not remains(before, read_state(running.pid))
    else:
        clean(running)
        assert not differences(before, read_state(running.pid))
        running.send()
        assert run_until_done(running)
    running.send()
    outcome = running.finish()
    assert comparable(outcome) == comparable(expected), str(outcome)


def test_probes_come_and_go_while_a_handler_waits(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare
) -> None:
    """What was interrupted goes on at its own address, or in the buffer of the moment."""
    expected = bare("fault_waits")
    functions = counts(expected)
    running = run(build("fault_waits"), "wait")
    running.expect(READY)
    before = read_state(running.pid)
    with attached(sidestep, running.pid) as target:
        batches = [target.count(place("fault_waits", function)) for function in functions]
        running.send()
        turns = 0

        def change() -> None:
            nonlocal turns
            probe = batches[turns % 2].probes[0]
            if turns % 3 == 0:
                target.disable_kprobe(probe)
                target.enable_kprobe(probe)
            elif turns % 3 == 1:
                target.unregister_kprobes([probe])
                (batch,) = (target.count(place("fault_waits", list(functions)[turns % 2])),)
                batches[turns % 2] = batch
            else:
                target.enabled = False
                target.enabled = True
            turns += 1

        assert run_until_done(running, change)
        assert turns == 6
    assert not remains(before, read_state(running.pid))
    running.send()
    outcome = running.finish()
    assert comparable(outcome) == comparable(expected), str(outcome)


@pytest.mark.parametrize("name", ["fault_waits", "fault_child"])
def test_detached_while_it_waits(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare, name: str
) -> None:
    """In a handler: at once, as nothing of ours is on its stack. With children: they are restored, too."""
    expected = bare(name)
    running = run(build(name), "wait")
    running.expect(READY)
    before = read_state(running.pid)
    target = sidestep.attach(running.pid)
    for function in counts(expected):
        target.count(place(name, function))
    running.send()
    left: list[Any] = []

    def leave() -> None:
        target.detach()
        left.extend(remains(before, read_state(pid)) for pid in family(running.pid))

    assert run_until_done(running, leave)
    assert left
    assert not any(left)
    running.send()
    outcome = running.finish()
    assert comparable(outcome) == comparable(expected), str(outcome)


def test_probes_in_children_come_and_go(sidestep: ModuleType, build: Builder, run: Run, bare: Bare) -> None:
    """Those that they have inherited, and whatever comes instead, in the middle of the same instructions."""
    name = "fault_child"
    expected = bare(name)
    running = run(build(name), "wait")
    running.expect(READY)
    neighbours = [each.offset for each in disassemble(build(name), {"load"})][1:3]
    with attached(sidestep, running.pid) as target:
        (probe,) = target.count(place(name, "load")).probes
        running.send()

        def change() -> None:
            before = target.count(place(name, "load", neighbours[0])).probes
            target.count(place(name, "load", neighbours[1]))
            target.unregister_kprobes(before)

        assert run_until_done(running, change)
        assert probe.hits == counts(expected)["load"]
    running.send()
    outcome = running.finish()
    assert comparable(outcome) == comparable(expected), str(outcome)


@pytest.mark.parametrize("name", HANDLING)
def test_launched(sidestep: ModuleType, build: Builder, run: Run, bare: Bare, name: str) -> None:
    """Probed before the program has installed any handler."""
    expected = bare(name)
    program = build(name)
    running = run(program, "wait", start=launcher(sidestep))
    target = running.process.target
    refused = probe_all(sidestep, target, every_place(program, name, set(counts(expected))))
    target.resume()
    running.expect(READY)
    running.send()
    assert run_until_done(running)
    running.send()
    outcome = running.finish()
    target.detach()
    assert comparable(outcome) == comparable(expected), str(outcome)
    assert refused <= OTHERWISE


def test_the_kernel_has_its_own_handlers_again(sidestep: ModuleType, build: Builder, run: Run) -> None:
    """Fronts stand where handlers were, not elsewhere, and go with the controller."""
    running = run(build("fault"), "wait")
    running.expect(READY)
    caught = read_state(running.pid).threads[running.pid]["SigCgt"]
    with attached(sidestep, running.pid) as target:
        target.count(place("fault", "touch"))
        assert read_state(running.pid).threads[running.pid]["SigCgt"] == caught
    assert int(caught, 16) & 1 << signal.SIGSEGV - 1
    assert not re.search(r"\[OPTIMIZED\]", sidestep.sessions_text(running.pid))
    running.send()
    assert run_until_done(running)
    running.send()
    assert running.finish().status == 0
