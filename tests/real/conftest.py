"""What the tests with real programs share: finding them, ports, and the check that nothing stayed behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from harness.untouched import State, mask_changes, read_state, remains

LOOPBACK = "127.0.0.1"


def find_program(name: str) -> str:
    """The path of an installed program; skips the test without it."""
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if path is None:
        pytest.skip(f"{name} is not installed (make test installs it)")
    return path


@pytest.fixture
def port() -> int:
    """A port of the loopback interface that nobody listens on."""
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        return int(listener.getsockname()[1])


def wait_for_port(port: int, time_limit: float = 20.0) -> None:
    end = time.monotonic() + time_limit
    while True:
        try:
            socket.create_connection((LOOPBACK, port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > end:
                pytest.fail(f"nobody listens on port {port}")
            time.sleep(0.02)


@contextlib.contextmanager
def probing(
    sidestep: ModuleType, pid: int, *probes: str, makes_code: bool = False
) -> Iterator[dict[str, Any]]:
    """Counts while the `with` lasts: the probes by the name of their functions; then looks for remains.

    Globs are meant to match many functions: those that are refused are left out. None may be for its faults:
    all of these programs handle them by way of the C library.
    """
    before = read_state(pid)
    target = sidestep.attach(pid)
    try:
        batch = target.count(*probes)
        reasons = {refused.refusal.reason.name for refused in batch.refused}
        assert not reasons & {"may-fault", "may-fault-later"}
        yield {probe.symbol.partition("+")[0]: probe for probe in batch.probes}
    finally:
        target.detach()
    check_nothing_remains(before, pid, makes_code=makes_code)


def check_nothing_remains(before: State, pid: int, *, makes_code: bool = False) -> None:
    after = read_state(pid)
    left = remains(before, after, makes_code=makes_code) + mask_changes(before, after)
    assert not left, "\n".join(left)
