"""What registering, switching and unregistering kprobes mean, whatever engine places them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sidestep
from harness.build import Builder
from harness.running import Running
from sidestep import Count, Kprobe, ProbeError, TargetError, errors

Run = Callable[..., Running]


class Program:
    """tests/programs/count.c with 1000 calls of each of its functions to come."""

    def __init__(self, running: Running, path: Path) -> None:
        self.running, self.path = running, path
        self.target = sidestep.attach(running.pid)

    def work(self) -> dict[str, int]:
        """Let it work; how often each function ran."""
        self.running.send()
        self.running.expect("done")
        lines = [line.split() for line in self.running.lines]
        return {words[2]: int(words[1]) for words in lines if words[0] == "count"}


@pytest.fixture
def program(build: Builder, run: Run) -> Iterator[Program]:
    running = run(build("count"), "1000", "wait")
    running.expect("ready")
    program = Program(running, build("count"))
    yield program
    program.target.detach()
    running.send()
    running.send()
    assert running.finish().status == 0


def bias(program: Program) -> int:
    return int(program.target.modules[0].bias)


def refused(caught: pytest.ExceptionInfo[ProbeError]) -> errors.Reason:
    return caught.value.reason


NAME = "work"


def test_a_probe_counts_from_registering_to_unregistering(program: Program) -> None:
    probe = Kprobe(NAME)
    assert not probe.registered
    program.target.register_kprobe(probe)
    assert probe.registered
    assert probe.optimized
    assert probe.symbol == NAME
    true = program.work()[NAME]
    assert probe.hits == true
    program.target.unregister_kprobe(probe)
    assert not probe.registered
    assert probe.hits == true
    assert probe.hits_by_pid == {program.running.pid: true}


def test_several_probes_at_one_address_each_count(program: Program) -> None:
    probes = [Kprobe(NAME), Kprobe(symbol_name=NAME), Kprobe(addr=program.target.resolve(NAME).address)]
    program.target.register_kprobes(probes)
    program.target.unregister_kprobe(probes[1])
    true = program.work()[NAME]
    assert [probe.hits for probe in probes] == [true, 0, true]


def test_a_probe_is_called_by_its_event_or_its_place(program: Program) -> None:
    start = program.target.resolve(NAME)
    assert program.target.memory.read(start.address, 5) == b"\x48\x8d\x44\x7f\x01"  # lea 1(%rdi,%rdi,2), %rax
    behind = [Kprobe(f"{NAME}+5"), Kprobe(addr=start.address + 5), Kprobe(symbol_name=NAME, offset=5)]
    named = Kprobe(NAME, action=Count("mine"))
    assert [probe.name for probe in behind] == [f"{NAME}+0x5", f"{start.address + 5:#x}", f"{NAME}+0x5"]
    program.target.register_kprobes([*behind, named, probe := Kprobe(NAME)])
    assert [each.name for each in behind] == [f"{NAME}+0x5"] * 3
    assert (named.name, probe.name) == ("mine", NAME)


def test_a_target_that_ended_is_said_to_be_gone(build: Builder, run: Run) -> None:
    """Not that its memory, which cannot be read any more, holds other code than its file."""
    running = run(build("count"), "1000", "wait")
    running.expect("ready")
    with sidestep.attach(running.pid) as target:
        target.register_kprobe(Kprobe(NAME))
        os.kill(running.pid, signal.SIGKILL)
        running.finish()
        with pytest.raises(TargetError) as caught:
            target.register_kprobe(Kprobe(f"{NAME}+5"))
    assert caught.value.reason is errors.PROCESS_GONE


def test_exactly_one_way_to_say_where() -> None:
    for wrong in ({}, {"where": "f", "addr": 1}, {"symbol_name": "f", "addr": 1}, {"addr": 1, "offset": 4}):
        with pytest.raises(ValueError, match=r"exactly one|addr"):
            Kprobe(**wrong)  # type: ignore[arg-type]


def test_the_same_probe_twice_is_refused(program: Program) -> None:
    probe = Kprobe(NAME)
    program.target.register_kprobe(probe)
    with pytest.raises(ProbeError) as caught:
        program.target.register_kprobe(probe)
    assert refused(caught) is errors.ALREADY_REGISTERED
    assert probe.registered


def test_a_batch_is_all_or_nothing(program: Program) -> None:
    before = program.target.memory.read(program.target.resolve(NAME).address, 16)
    good = Kprobe(NAME)
    with pytest.raises(ProbeError) as caught:
        program.target.register_kprobes([good, Kprobe("no_such_function")])
    assert refused(caught) is errors.NO_SUCH_SYMBOL
    assert not good.registered
    assert not program.target.probes
    assert program.target.memory.read(program.target.resolve(NAME).address, 16) == before
    program.target.register_kprobe(good)
    assert program.work()[NAME] == good.hits


def test_an_unknown_probe_raises_after_the_others_are_out(program: Program) -> None:
    known, unknown = Kprobe(NAME), Kprobe("main")
    program.target.register_kprobe(known)
    with pytest.raises(ProbeError) as caught:
        program.target.unregister_kprobes([unknown, known])
    assert refused(caught) is errors.NOT_REGISTERED
    assert not known.registered


def test_disabled_probes_count_nothing(program: Program) -> None:
    off, on, switched = Kprobe(NAME, disabled=True), Kprobe(NAME), Kprobe(NAME)
    program.target.register_kprobes([off, on, switched])
    program.target.disable_kprobe(switched)
    assert program.target.list().count("[DISABLED]") == 2
    assert sidestep.sessions_text(program.running.pid).count("[DISABLED]") == 2
    true = program.work()[NAME]
    assert [probe.hits for probe in (off, on, switched)] == [0, true, 0]
    program.target.enable_kprobe(off)
    assert not off.disabled


def test_switching_all_keeps_what_each_probe_is(program: Program) -> None:
    address = program.target.resolve(NAME).address
    before = program.target.memory.read(address, 16)
    on, off = Kprobe(NAME), Kprobe(NAME, disabled=True)
    program.target.register_kprobes([on, off])
    program.target.enabled = False
    assert program.target.memory.read(address, 16) == before
    program.target.enabled = True
    assert program.target.memory.read(address, 16) != before
    true = program.work()[NAME]
    assert [on.hits, off.hits] == [true, 0]


def test_an_address_inside_an_instruction_shows_its_bounds(program: Program) -> None:
    address = program.target.resolve(NAME).address
    assert program.target.memory.read(address, 5) == b"\x48\x8d\x44\x7f\x01"  # lea 1(%rdi,%rdi,2), %rax
    with pytest.raises(ProbeError) as caught:
        program.target.register_kprobe(Kprobe(addr=address + 2))
    assert refused(caught) is errors.NOT_A_BOUNDARY
    bounds = f"{address - bias(program):#x}-{address - bias(program) + 5:#x}"
    assert caught.value.detail.endswith(f"at {bounds} (work+0x0)")
    assert str(caught.value).count("\n") <= 2


def test_the_list_has_the_kernels_format(program: Program) -> None:
    program.target.register_kprobe(Kprobe(NAME))
    address = program.target.resolve(NAME).address
    assert program.target.list() == f"{address:016x}  k  {NAME}+0x0  count [OPTIMIZED]"
    assert program.target.list() in sidestep.sessions_text(program.running.pid)


def test_a_second_controller_is_told_who_is_there(program: Program) -> None:
    program.target.register_kprobe(Kprobe(NAME))
    with pytest.raises(sidestep.TargetError) as caught:
        sidestep.attach(program.running.pid)
    assert caught.value.reason is errors.OTHER_SESSION


def test_probes_from_several_threads_at_once(program: Program) -> None:
    probes = [Kprobe(NAME) for _ in range(8)]
    failures: list[Any] = []

    def register(probe: Kprobe) -> None:
        try:
            program.target.register_kprobe(probe)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=register, args=(probe,)) for probe in probes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    true = program.work()[NAME]
    assert [probe.hits for probe in probes] == [true] * 8


def test_handlers_are_refused_by_name(program: Program) -> None:
    with pytest.raises(ProbeError) as caught:
        Kprobe(NAME, pre_handler=print)
    assert refused(caught) is errors.NOT_SUPPORTED


def test_a_batch_is_its_probes(program: Program) -> None:
    batch = program.target.count(NAME, "main")
    assert [probe.symbol for probe in batch] == [NAME, "main"]
    assert len(batch) == 2
    program.target.unregister_kprobes(batch)
    assert not any(probe.registered for probe in batch)
    program.target.register_kprobes(Kprobe(name) for name in (NAME, "main"))
    assert len(program.target.probes) == 2


def test_a_target_that_was_detached_says_so(program: Program) -> None:
    target = program.target
    target.trace(NAME)
    target.detach()
    for ask in (
        lambda: target.trace(NAME),
        lambda: target.count(NAME),
        lambda: target.register_kprobe(Kprobe(NAME)),
        lambda: target.unregister_kprobes([]),
    ):
        with pytest.raises(TargetError, match="this target was detached") as caught:
            ask()
        assert caught.value.reason is errors.DETACHED
        assert not caught.value.is_gone
    assert list(target.events()) == []
