"""The command line, in this process and in one of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from harness.samples import Samples
from sidestep.cli.main import app

SIDESTEP = (sys.executable, "-m", "sidestep")


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


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """`command("funcs", "-f", ELF, GLOB)` runs a command in this process."""
    monkeypatch.setenv("COLUMNS", "120")

    def run(*words: object) -> Result:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ending:
            app([str(word) for word in words])
        output, errors = capsys.readouterr()
        code = ending.value.code
        assert isinstance(code, int)
        return Result(output, errors, code)

    return run


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    """`samples(SOURCE, FLAG, ...)` is the path of the compiled source text."""
    return Samples(tmp_path_factory.mktemp("samples"))


def words(line: str) -> Sequence[str]:
    """The cells of a row whose cells hold no blanks."""
    return line.split()
