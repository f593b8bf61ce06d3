"""Fixtures for all tests: built programs, running processes, and the product where a test drives it."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from harness.build import Builder
from harness.running import Running
from harness.samples import Samples

# A shell starts background jobs with these ignored, and children would inherit that.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    """`build(NAME)` is the path of the compiled tests/programs/NAME.c; each is compiled once a session."""
    return Builder(tmp_path_factory.mktemp("programs"))


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    """`samples(SOURCE, FLAG, ...)` is the path of the compiled source text."""
    return Samples(tmp_path_factory.mktemp("samples"))


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """`run(program, argument, ...)` starts a process in a group of its own, killed when the test ends."""
    with contextlib.ExitStack() as processes:

        def start(*words: str | Path, **options: object) -> Running:
            running = Running(words, folder=tmp_path, **options)  # type: ignore[arg-type]
            return processes.enter_context(running)

        yield start


@pytest.fixture(scope="session")
def sidestep() -> ModuleType:
    """The product, for the tests that attach to processes."""
    import sidestep as product

    return product
