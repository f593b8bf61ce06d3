"""A thread that a dead controller had borrowed goes on when it gets a CPU: what it makes is waited for."""

from __future__ import annotations

import itertools

import pytest

from sidestep.target.process import procfs, remains


def test_a_thread_that_runs_with_all_signals_blocked_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = itertools.count()
    monkeypatch.setattr(procfs, "threads", lambda pid: [1, 2])
    monkeypatch.setattr(procfs, "blocks_everything", lambda pid, tid: tid == 2 and next(looks) < 3)
    monkeypatch.setattr(procfs, "thread_state", lambda pid, tid: "R")
    remains.await_lent_threads(1)
    assert next(looks) == 4


def test_a_thread_that_sleeps_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procfs, "threads", lambda pid: [1])
    monkeypatch.setattr(procfs, "blocks_everything", lambda pid, tid: True)
    states = iter("S")
    monkeypatch.setattr(procfs, "thread_state", lambda pid, tid: next(states))
    remains.await_lent_threads(1)
