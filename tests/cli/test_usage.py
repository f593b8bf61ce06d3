"""Command lines that do not go together, and what is said about them. Nothing is attached to."""

from __future__ import annotations

import os

import pytest

from cli.conftest import Command
from sidestep.cli.options import Invocation

PID = str(os.getppid())
HUGE = "99999999999999999999"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["count"], "which process? Give -p PID, -n NAME, or -- COMMAND"),
        (["count", "malloc"], "which process?"),
        (["count", "-p", PID], "which function? Give a probe"),
        (["count", "-p", PID, "-n", "init", "malloc"], "only one of -p PID, -n NAME and -- COMMAND"),
        (["trace", "-p", PID, "malloc", "--", "true"], "only one of"),
        (["trace", "malloc", "--"], "no command behind --"),
        (["trace", "malloc", "--", ""], "no command behind --"),
        (["count", "--interval", "nan", "-p", PID, "f"], "--interval takes seconds, up to a day"),
        (["count", "--interval", "1e300", "-p", PID, "f"], "--interval takes seconds, up to a day"),
        (["trace", "--format", "json", "malloc", "--", "true"], "--format json needs -o FILE"),
        (["trace", "--tid", "1", "malloc", "--", "true"], "--tid needs a running process"),
        (["count", "--duration", "nan", "-p", PID, "f"], "--duration takes a number of seconds"),
        (["count", "--duration", "inf", "-p", PID, "f"], "--duration takes a number of seconds"),
        (["count", "-p", PID, " "], "the place to probe is missing (WHERE is"),
        (["funcs", "malloc"], "give one of -p PID, -n NAME and -f ELF"),
        (["funcs", "-p", PID, "malloc", "--", "true"], "`sidestep funcs` launches no command"),
        (["check", "-f", "/bin/true"], "which function?"),
        (["check", "--all"], "--all goes with -f ELF"),
        (["list"], "give one of -p PID and -n NAME"),
        (["clean", "-p", PID, "-n", "init"], "give one of -p PID and -n NAME"),
        (["demo", "--", "true"], "launches no command"),
    ],
)
def test_usage(command: Command, line: list[str], message: str) -> None:
    result = command(*line)
    assert message in result.errors
    assert result.errors.startswith("sidestep: ")
    assert result.output == ""
    assert result.code == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["nothing"], "No such command 'nothing'"),
        (["count", "--nothing"], "No such option: --nothing"),
        (["count", "-p", "x", "malloc"], "'-p' / '--pid'"),
        (["count", "-p", "0", "malloc"], "'-p' / '--pid'"),
        *(([command, "-p", HUGE, "malloc"], "'-p' / '--pid'") for command in ("trace", "check", "funcs")),
        *(([command, "-p", HUGE], "'-p' / '--pid'") for command in ("list", "clean")),
        (["count", "-p", PID, "--tid", HUGE, "malloc"], "'--tid'"),
        (["trace", "-p", PID, "--stack", HUGE, "malloc"], "'--stack'"),
        (["trace", "-p", PID, "--string-limit", HUGE, "malloc"], "'--string-limit'"),
        (["count", "--format", "xml", "malloc"], "'--format'"),
        (["trace", "--limit", "0", "malloc"], "'--limit'"),
    ],
)
def test_options(command: Command, line: list[str], message: str) -> None:
    result = command(*line)
    assert message in result.errors
    assert result.code == 2


def test_a_typing_error_in_a_probe_gets_a_caret(command: Command) -> None:
    result = command("trace", "-p", PID, "libc:malloc size=$ark1:u64")
    assert result.code == 2
    lines = result.errors.splitlines()
    assert lines[1] == "  libc:malloc size=$ark1:u64"
    assert lines[2].rstrip() == "                   ^"


def test_whoever_forgets_the_quotes_is_told_so(command: Command) -> None:
    result = command("trace", "-p", PID, "libc:malloc", "size=$arg1:u64")
    assert "a probe is one shell word: put all of it between single quotes" in result.errors
    assert result.code == 2


@pytest.mark.parametrize("name", ["trace", "count", "funcs", "check", "list", "clean", "demo"])
def test_every_command_has_help(command: Command, name: str) -> None:
    result = command(name, "--help")
    assert f"sidestep {name}" in result.output
    assert result.code == 0
    assert command(name, "-h") == result


def test_the_grammar_is_shown(command: Command) -> None:
    assert command("--grammar").output.startswith("PROBE ")


def test_words_behind_two_dashes_are_the_command() -> None:
    line = ["count", "malloc", "--", "ls", "-l", "--", "x"]
    assert Invocation.split(line) == (["count", "malloc"], Invocation(("ls", "-l", "--", "x")))
    assert Invocation.split(["count", "malloc"]) == (["count", "malloc"], Invocation(None))
