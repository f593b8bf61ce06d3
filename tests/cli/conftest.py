"""The command line, in this process and in one of its own; a program that runs as long as a test needs it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.running import Running
from harness.samples import Samples
from sidestep.cli.interrupt import ENDING
from sidestep.cli.main import app

SIDESTEP = (sys.executable, "-m", "sidestep")
ENVIRONMENT = {"PYTHONPATH": str(Path(__file__).parents[2] / "src"), "COLUMNS": "120"}

TICKING = """
#include <poll.h>
#include <stdio.h>

__attribute__((noipa)) long tick(long value, const char *text) { return value + (text[0] == 't'); }

int main(void)
{
    struct pollfd input = {0, POLLIN, 0};
    long value = 0;
    puts("up");
    fflush(stdout);
    while (poll(&input, 1, 1) == 0)
        value = tick(value, "tick");
    printf("ticks %ld\\n", value);
    return 0;
}
"""


@dataclass(frozen=True, slots=True)
class Result:
    """What one command wrote, and its exit code."""

    output: str
    errors: str
    code: int

    @property
    def lines(self) -> list[str]:
        return self.output.splitlines()


Command = Callable[..., Result]
Start = Callable[..., Running]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """`command("funcs", "-f", ELF, GLOB)` runs a command in this process."""
    monkeypatch.setenv("COLUMNS", "120")
    handlers = {number: signal.getsignal(number) for number in ENDING}

    def run(*words: object) -> Result:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ending:
            app([str(word) for word in words])
        output, errors = capsys.readouterr()
        code = ending.value.code
        assert isinstance(code, int)
        return Result(output, errors, code)

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)  # a command's process would have ended


@pytest.fixture
def sidestep_run(run: Start) -> Start:
    """`sidestep_run("count", ...)` starts the command in a process of its own."""

    def start(*words: object) -> Running:
        return run(*SIDESTEP, *map(str, words), environment=ENVIRONMENT)

    return start


@pytest.fixture
def ticking(run: Start, samples: Samples) -> Running:
    """A program that calls tick(value, "tick") every millisecond until its standard input is closed."""
    running = run(samples(TICKING, "-O2"))
    running.expect("up")
    return running
