"""Programs run with probes as they do without; every hit is counted; nothing stays behind."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from types import ModuleType

import pytest

from harness.build import BUILDS, Builder, sources
from harness.probing import Probed, attached, launcher, probe_functions
from harness.programs import comparable, counts, counts_by_pid, place, run_until_done
from harness.running import Outcome, Running
from harness.untouched import differences, read_state, remains

Run = Callable[..., Running]
Bare = Callable[..., Outcome]
Masks = Callable[[str], dict[str, str]]

NAMES = sorted(name for name, source in sources().items() if not source.refused)
ROUNDS = 12
CANCELLABLE_CALL = (0x00, 0x02, 0x04, 0x06, 0x09, 0x0C, 0x0F, 0x12, 0x15, 0x18, 0x1D, 0x22, 0x27)
"""The instructions of musl's __syscall_cp_asm up to its `syscall`, in all versions since 1.0."""
LONG = [name for name in NAMES if sources()[name].long]


def check_counts(name: str, probed: Probed, hits: dict[str, int], true: dict[str, int]) -> None:
    """Every function that was probed was counted exactly, and only those were refused that may be."""
    unexpected = set(probed.refused) - set(sources()[name].words("refusable"))
    assert not unexpected, f"refused: {probed.refused}"
    assert hits == {function: true[function] for function in hits}


@pytest.mark.parametrize("name", NAMES)
def test_attached(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare, bare_masks: Masks, name: str
) -> None:
    """Attached before the program's work and detached behind it."""
    expected = bare(name)
    running = run(build(name), "wait", environment=build.environment(name))
    running.expect("ready")
    before = read_state(running.pid)
    with attached(sidestep, running.pid) as target:
        probed = probe_functions(sidestep, target, name, counts(expected))
        running.send()
        waits = run_until_done(running)
        hits, by_pid = probed.hits, probed.hits_by_pid
    if waits:
        after = read_state(running.pid)
        assert not remains(before, after)
        assert after.threads[running.pid] == bare_masks(name)
    running.send()
    outcome = running.finish()
    assert comparable(outcome) == comparable(expected), str(outcome)
    if waits:
        check_counts(name, probed, hits, counts(outcome))
        for function, numbers in counts_by_pid(outcome).items():
            assert by_pid[function] == numbers


@pytest.mark.parametrize("name", NAMES)
def test_launched(sidestep: ModuleType, build: Builder, run: Run, bare: Bare, name: str) -> None:
    """Launched with probes, before the first instruction, that stay until the end."""
    expected = bare(name)
    running = run(build(name), "wait", environment=build.environment(name), start=launcher(sidestep))
    target = running.process.target
    probed = probe_functions(sidestep, target, name, counts(expected, launched=True))
    target.resume()
    running.expect("ready")
    running.send()
    waits = run_until_done(running)
    hits = probed.hits
    running.send()
    outcome = running.finish()
    target.detach()
    assert comparable(outcome) == comparable(expected), str(outcome)
    if waits:
        check_counts(name, probed, hits, counts(outcome, launched=True))


@pytest.mark.parametrize("name", NAMES)
def test_nothing_stays_behind(sidestep: ModuleType, build: Builder, run: Run, bare: Bare, name: str) -> None:
    """A program that only waits is exactly as before once the controller has gone, three times over."""
    expected = bare(name)
    running = run(build(name), "wait", environment=build.environment(name))
    running.expect("ready")
    before = read_state(running.pid)
    for _ in range(3):
        with attached(sidestep, running.pid) as target:
            probe_functions(sidestep, target, name, counts(expected))
        assert not differences(before, read_state(running.pid))
    running.send()
    run_until_done(running)
    running.send()
    assert comparable(running.finish()) == comparable(expected)


@pytest.mark.parametrize("name", LONG)
def test_probes_come_and_go(sidestep: ModuleType, build: Builder, run: Run, bare: Bare, name: str) -> None:
    """Controllers attach to a program that works hard, probe all its functions and leave again."""
    size = sources()[name].long
    expected = bare(name, size)
    running = run(build(name), str(size), "wait", environment=build.environment(name), time_limit=90)
    running.expect("ready")
    running.send()
    seen: dict[str, int] = dict.fromkeys(counts(expected), 0)
    line: str | None = ""
    rounds = 0
    while line == "" and rounds < ROUNDS:
        rounds += 1
        # The program may end, or turn into another one, at any of these points.
        with contextlib.suppress(sidestep.TargetError), attached(sidestep, running.pid) as target:
            probed = probe_functions(sidestep, target, name, counts(expected))
            time.sleep(0.02)
            hits = probed.hits
            for function in hits:
                seen[function] += hits[function]
        line = running.next_line(patience=0.01)
    if line is not None and line != "done":
        run_until_done(running)
    running.send()
    outcome = running.finish()
    assert comparable(outcome) == comparable(expected), str(outcome)
    true = counts(outcome)
    assert all(seen[function] <= true[function] for function in true), f"{seen} of {true}"


@pytest.mark.parametrize("name", [name for name in NAMES if sources()[name].words("blocks")])
def test_waiting_threads_notice_nothing(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare, name: str
) -> None:
    """Threads that wait in system calls are stopped and probed several times, and go on waiting."""
    expected = bare(name)
    running = run(build(name), "wait")
    running.expect("ready")
    running.send()

    def come_and_go() -> None:
        before = read_state(running.pid)
        for _ in range(5):
            with attached(sidestep, running.pid) as target:
                probe_functions(sidestep, target, name, counts(expected))
        # Threads that wait for time to pass may end meanwhile.
        compare = remains if "time" in sources()[name].words("blocks") else differences
        assert not compare(before, read_state(running.pid))

    assert run_until_done(running, come_and_go)
    running.send()
    assert comparable(running.finish()) == comparable(expected)


@pytest.mark.parametrize("way", ["default", "static", "musl", "musl-static"])
def test_cancelled_with_all_code_probed(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare, way: str
) -> None:
    """The C library's handler finds threads where it looks for them."""
    expected = bare("cancelled_reads", None, way)
    running = run(build("cancelled_reads", way), "wait", time_limit=60)
    running.expect("ready")
    with attached(sidestep, running.pid) as target:
        target.count("*:*")
        reasons = []
        if way == "musl-static":  # the call itself, too
            for offset in CANCELLABLE_CALL:
                try:
                    target.count(place("cancelled_reads", "__syscall_cp_asm", offset))
                except sidestep.ProbeError as error:
                    reasons.append(error.reason.name)
        running.send()
        assert run_until_done(running)
    running.send()
    outcome = running.finish()
    assert comparable(outcome) == comparable(expected), str(outcome)
    if way == "musl-static":
        assert len(reasons) == len(CANCELLABLE_CALL)
        assert set(reasons) <= {"cancellation", "too-short"}


@pytest.mark.parametrize("way", [way for way in BUILDS if way not in ("default", "stripped")])
@pytest.mark.parametrize("name", ["count", "fork", "recursion", "switch", "threads"])
def test_however_it_is_built(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare, name: str, way: str
) -> None:
    expected = bare(name, None, way)
    running = run(build(name, way), "wait")
    running.expect("ready")
    before = read_state(running.pid)
    with attached(sidestep, running.pid) as target:
        probed = probe_functions(sidestep, target, name, counts(expected))
        running.send()
        assert run_until_done(running)
        hits = probed.hits
    assert not remains(before, read_state(running.pid))
    running.send()
    outcome = running.finish()
    assert comparable(outcome) == comparable(expected), str(outcome)
    check_counts(name, probed, hits, counts(outcome))
