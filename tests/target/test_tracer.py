"""The thread that traces, and what is let go when something fails in the middle."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from types import ModuleType

import pytest

from harness.build import Builder
from harness.probing import attached
from harness.running import Running
from harness.untouched import differences, read_state
from sidestep import errors
from sidestep.address import Range
from sidestep.errors import SidestepError, TargetError
from sidestep.maps import read_maps
from sidestep.target.process import areas, procfs, ptrace
from sidestep.target.process.process import Tracer, Window, attach
from sidestep.target.process.stop import StillAttachedError

Run = Callable[..., Running]


def at_once(count: int, function: Callable[[], object]) -> None:
    """Calls a function in many threads, as much at the same time as can be."""
    barrier = threading.Barrier(count)

    def wait_and_call() -> None:
        barrier.wait()
        function()

    threads = [threading.Thread(target=wait_and_call) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_first_callers_share_a_thread() -> None:
    for _ in range(50):
        tracer = Tracer()
        seen: list[int] = []
        at_once(8, lambda tracer=tracer, seen=seen: seen.append(tracer.run(threading.get_ident)))  # type: ignore[misc]
        assert len(set(seen)) == 1
        assert len(seen) == 8
        tracer.close()


def test_no_work_is_lost_when_the_thread_has_to_end() -> None:
    tracer = Tracer()
    failures: list[TargetError] = []
    done: list[int] = []

    def fail() -> None:
        time.sleep(0.001)
        raise StillAttachedError("process 0", errors.THREAD_STUCK)

    def work() -> None:
        for _ in range(10):
            try:
                tracer.run(fail)
            except StillAttachedError as error:
                failures.append(error)
            done.append(tracer.run(threading.get_ident))

    at_once(6, work)
    assert len(failures) == len(done) == 60
    tracer.close()
    with pytest.raises(RuntimeError):
        tracer.run(threading.get_ident)


def test_a_thread_that_cannot_be_detached(build: Builder, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are, and the kernel lets that one go when the tracing thread ends."""
    running = run(build("threads"), "1000000", "wait")
    running.expect("ready")
    running.send()
    while len(procfs.threads(running.pid)) < 3:
        time.sleep(0.001)
    process = attach(running.pid)
    call, failed = ptrace.call, []

    def failing(request: ptrace.Request, tid: int, *rest: int) -> int:
        if request is ptrace.Request.DETACH and not failed:
            failed.append(tid)
            raise OSError(5, "Input/output error")
        return call(request, tid, *rest)

    monkeypatch.setattr(ptrace, "call", failing)
    with pytest.raises(TargetError) as caught:
        process.in_window(lambda window: None)
    assert caught.value.reason is errors.NOT_LET_GO
    running.expect("done")  # all its threads run to their end
    process.in_window(lambda window: None)
    process.close()
    running.send()
    assert running.finish().status == 0


def test_no_descriptor_is_lost_when_a_process_ends_meanwhile(
    build: Builder, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = run(build("count"), "wait")
    running.expect("ready")
    check, descriptors = procfs.check_attachable, os.listdir("/proc/self/fd")
    looks = 0

    def check_and_kill(pid: int) -> procfs.Status:
        nonlocal looks
        status, looks = check(pid), looks + 1
        if looks == 1:
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return status

    monkeypatch.setattr(procfs, "check_attachable", check_and_kill)
    with pytest.raises(TargetError) as caught:
        attach(running.pid)
    assert caught.value.reason in (errors.PROCESS_GONE, errors.NO_SUCH_PROCESS)
    assert os.listdir("/proc/self/fd") == descriptors


@pytest.mark.parametrize("what", ["shared", "arena"])
def test_what_is_in_the_way_stays(
    build: Builder, run: Run, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The address space has changed since the place was chosen: only what was made is taken away again."""
    running = run(build("count"), "wait")
    running.expect("ready")
    before = read_state(running.pid)
    maps = read_maps(running.pid)
    library = next(
        mapping for below, mapping in itertools.pairwise(maps) if mapping.start - below.end > 1 << 20
    )
    process = attach(running.pid)
    size = 1 << 16
    # Room for the first of two mappings only; or for none.
    monkeypatch.setattr(areas, "find_gap", lambda *_: library.start - (size if what == "shared" else 0))

    def create(window: Window) -> object:
        if what == "shared":
            return areas.create_shared(window, size, [(0, size, 0), (size, size, 0)])
        return areas.create_arena(window, Range(maps[0].start, maps[0].end), size, 0)

    with pytest.raises(TargetError) as caught:
        process.in_window(create)
    assert caught.value.reason is errors.REMOTE_CALL_FAILED
    process.close()
    assert not differences(before, read_state(running.pid))


def test_more_probes_at_a_place_than_its_record_can_describe(
    sidestep: ModuleType, build: Builder, run: Run
) -> None:
    """Noticed before the stop: in the middle of it there would be no way back."""
    running = run(build("count"), "wait")
    running.expect("ready")
    before = read_state(running.pid)
    text = "count:work " + " ".join(f"f{number}=$arg1" for number in range(30))
    with attached(sidestep, running.pid) as target:
        few = target.trace(*[text] * 3).probes
        with pytest.raises(sidestep.ProbeError) as refusal:
            target.trace(*[text] * 400)
        assert refusal.value.reason is errors.TOO_MANY_PROBES
        assert target.probes == few
        running.send()
        running.expect("done")
        assert len({probe.hits for probe in few}) == 1
        assert few[0].hits
    assert not [each for each in differences(before, read_state(running.pid)) if "code" in each]
    running.send()
    assert running.finish().status == 0


def test_a_probe_that_fails_takes_no_index(sidestep: ModuleType, build: Builder, run: Run) -> None:
    running = run(build("count"), "wait")
    running.expect("ready")
    with attached(sidestep, running.pid) as target:
        arrays = "a=$arg1 " + " ".join(f"a{number}=+0($arg1):u64[256]" for number in range(40))
        for _ in range(3):
            with pytest.raises(sidestep.ProbeError):
                target.trace(f"count:work {arrays} if a == 3")
        indexes = target._manager.placer.indexes
        assert sorted(indexes._free) == list(range(indexes.highest))


def test_a_failure_behind_the_scenes_is_told(
    sidestep: ModuleType, build: Builder, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = run(build("count"), "wait")
    running.expect("ready")
    before = read_state(running.pid)
    target = sidestep.attach(running.pid)
    target.count("count:work")
    manager = target._manager

    def ended(*_: object) -> None:
        raise ValueError("a block that cannot be")

    monkeypatch.setattr(manager.counters, "ended", ended)
    manager._keeper._thread.join()
    with pytest.raises(SidestepError, match="a block that cannot be"):
        target.detach()
    assert not differences(before, read_state(running.pid))
