"""Programs that filter their system calls: probed where their filters allow what that takes, else refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType

import pytest

from harness.build import Builder, sources
from harness.probing import attached
from harness.programs import comparable, counts, place, run_until_done
from harness.running import Running
from harness.untouched import read_state, remains
from programs.conftest import Bare
from sidestep.session import DetachError
from sidestep.target.process import ptrace, remote, seccomp
from sidestep.target.process.calls import INJECTED, SETTING_HANDLERS
from sidestep.target.process.filters import decode
from sidestep.target.process.process import attach

pytestmark = pytest.mark.process

Run = Callable[..., Running]
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root may read filters")


def finish(running: Running) -> object:
    running.send()
    run_until_done(running)
    running.send()
    return comparable(running.finish())


@pytest.mark.parametrize("name", ["seccomp", "seccomp_thread"])
def test_a_program_that_would_be_killed_is_refused(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare, name: str
) -> None:
    """One call too many and the kernel would kill it."""
    running = run(build(name), "wait")
    running.expect("ready")
    before = read_state(running.pid)
    with pytest.raises(sidestep.TargetError) as refusal:
        sidestep.attach(running.pid)
    assert refusal.value.reason.name == sources()[name].refused
    assert not remains(before, read_state(running.pid))
    assert finish(running) == comparable(bare(name))


@ROOT
def test_the_refusal_names_the_call(sidestep: ModuleType, build: Builder, run: Run) -> None:
    for name, words in (
        ("seccomp", "getpid (it kills the process)"),
        ("seccomp_thread", "strict mode"),
    ):
        running = run(build(name), "wait")
        running.expect("ready")
        with pytest.raises(sidestep.TargetError) as refusal:
            sidestep.attach(running.pid)
        assert words in refusal.value.detail


def test_filters_that_may_not_be_read(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for everybody without CAP_SYS_ADMIN: refused, unless the user answers for it."""

    def forbidden(tid: int) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(seccomp, "read_filters", forbidden)
    running = run(build("seccomp_counting"), "wait")
    running.expect("ready")
    with pytest.raises(sidestep.TargetError) as refusal:
        sidestep.attach(running.pid)
    assert "CAP_SYS_ADMIN" in refusal.value.detail
    with sidestep.attach(running.pid, allow_seccomp=True) as target:
        (probe,) = target.count(place("seccomp_counting", "work")).probes
        running.send()
        run_until_done(running)
        assert probe.hits == counts(bare("seccomp_counting"))["work"]
    running.send()
    assert comparable(running.finish()) == comparable(bare("seccomp_counting"))


@ROOT
def test_where_the_filters_allow_counting_only(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare
) -> None:
    running = run(build("seccomp_counting"), "wait")
    running.expect("ready")
    before = read_state(running.pid)
    with attached(sidestep, running.pid) as target:
        for text in ("{} name=$comm", "{} if $arg1 == 3"):
            with pytest.raises(sidestep.ProbeError) as refusal:
                target.trace(text.format(place("seccomp_counting", "work")))
            assert refusal.value.reason.name == "seccomp"
            assert "process_vm_readv" in refusal.value.detail
        (probe,) = target.count(place("seccomp_counting", "work")).probes
        running.send()
        run_until_done(running)
        assert probe.hits == counts(bare("seccomp_counting"))["work"]
    assert not remains(before, read_state(running.pid))
    running.send()
    assert comparable(running.finish()) == comparable(bare("seccomp_counting"))


@ROOT
def test_a_filter_that_comes_later(sidestep: ModuleType, build: Builder, run: Run, bare: Bare) -> None:
    """What the process may not unmap itself stays there; the jumps are out, and that is said."""
    running = run(build("seccomp_later"), "wait")
    running.expect("ready")
    target = sidestep.attach(running.pid)
    (probe,) = target.count(place("seccomp_later", "work")).probes
    running.send()
    run_until_done(running)
    with pytest.raises(DetachError) as problem:
        target.detach()
    assert "munmap (it kills the process)" in str(problem.value)
    assert probe.hits == counts(bare("seccomp_later"))["work"]
    running.send()
    assert comparable(running.finish()) == comparable(bare("seccomp_later"))


@ROOT
def test_where_handlers_may_not_be_changed_instructions_that_may_fault_do_not_move(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare
) -> None:
    """All other probes are placed, and no handler of the program is touched."""
    running = run(build("fault_seccomp"), "wait")
    running.expect("ready")
    before = read_state(running.pid)
    with attached(sidestep, running.pid) as target:
        (probe,) = target.count(place("fault_seccomp", "work")).probes
        for _ in range(2):
            with pytest.raises(sidestep.ProbeError) as refusal:
                target.count(place("fault_seccomp", "load"))
            assert refusal.value.reason.name == "may-fault"
        running.send()
        run_until_done(running)
        assert probe.hits == counts(bare("fault_seccomp"))["work"]
    assert not remains(before, read_state(running.pid))
    running.send()
    assert comparable(running.finish()) == comparable(bare("fault_seccomp"))


@ROOT
def test_handlers_that_may_not_be_changed_any_more(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare
) -> None:
    """Fronts stay before them, and the memory that they are in; the code is as it was."""
    running = run(build("fault_seccomp_later"), "wait")
    running.expect("ready")
    before = read_state(running.pid)
    target = sidestep.attach(running.pid)
    (probe,) = target.count(place("fault_seccomp_later", "load")).probes
    running.send()
    run_until_done(running)
    with pytest.raises(DetachError) as problem:
        target.detach()
    assert "rt_sigaction (it kills the process)" in str(problem.value)
    after = read_state(running.pid)
    assert {path: code for path, code in after.code.items() if path in before.code} == before.code
    assert probe.hits == counts(bare("fault_seccomp_later"))["load"]
    running.send()
    assert comparable(running.finish()) == comparable(bare("fault_seccomp_later"))


def test_every_call_that_is_made_is_one_that_was_judged(
    sidestep: ModuleType, build: Builder, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[int, tuple[int, ...]]] = []
    call = remote.RemoteCalls.call

    def noted(self: remote.RemoteCalls, number: int, *arguments: int) -> int:
        made.append((number, arguments))
        return call(self, number, *arguments)

    monkeypatch.setattr(remote.RemoteCalls, "call", noted)
    running = run(build("fault"), "wait")
    running.expect("ready")
    with attached(sidestep, running.pid) as target:
        target.trace(f"{place('fault', 'touch')} value=$arg1 name=$comm")
    for number, arguments in made:
        assert any(
            judged.number == number
            and all(
                want is None or want == got for want, got in zip(judged.arguments, arguments, strict=False)
            )
            for judged in (*INJECTED, *SETTING_HANDLERS)
        ), (number, arguments)
    assert len({number for number, _ in made}) >= 7


@ROOT
def test_filters_are_read_as_they_were_installed(build: Builder, run: Run) -> None:
    running = run(build("seccomp_counting"), "wait")
    running.expect("ready")
    process = attach(running.pid, allow_seccomp=True)
    try:
        filters = process.in_window(lambda window: seccomp.read_filters(running.pid))
        programs = [decode(raw) for raw in filters]
        assert sorted(len(program) for program in programs) == [9, 11]
        assert {program[0] for program in programs} == {(0x20, 0, 0, 0), (0x20, 0, 0, 4)}
        with pytest.raises(OSError, match="SECCOMP_GET_FILTER"):
            process.in_window(
                lambda window: ptrace.call(ptrace.Request.SECCOMP_GET_FILTER, running.pid, 1 << 32)
            )
    finally:
        process.close()
