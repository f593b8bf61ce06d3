"""The options of the commands, each declared once, and what a set of them asks for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from sidestep.cli.output import say
from sidestep.maps import LARGEST_PID


class UsageError(Exception):
    """The command line asks for something that does not go together. Exit code 2."""


class Format(str, Enum):  # noqa: UP042  (StrEnum.__str__ would be fine, but typer's oldest version wants this form)
    """How results are written."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Invocation:
    """The words behind `--`: a command to launch (None where there was no `--`)."""

    command: tuple[str, ...] | None

    @classmethod
    def split(cls, words: list[str]) -> tuple[list[str], Invocation]:
        """The words for the option parser, and the rest behind the first `--`."""
        if "--" not in words:
            return words, cls(None)
        place = words.index("--")
        return words[:place], cls(tuple(words[place + 1 :]))

    def refuse(self, name: str) -> None:
        """For commands that launch nothing."""
        if self.command is not None:
            raise UsageError(f"`sidestep {name}` launches no command: there is nothing to put behind --")


def choose_pid(pid: int | None, name: str | None) -> int:
    """The process that -p or -n gives."""
    if (pid is None) == (name is None):
        raise UsageError("give one of -p PID and -n NAME")
    from sidestep.target.process import procfs

    if pid is None:
        return procfs.find(name or "")
    chosen = procfs.choose(pid)
    if chosen != pid:
        say(f"process {chosen} is meant, which is {pid} in its own pid namespace")
    return chosen


@dataclass(frozen=True, slots=True)
class Choice:
    """Which process: exactly one of a pid, a name and a command to launch."""

    pid: int | None
    name: str | None
    command: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        given = [self.pid is not None, self.name is not None, self.command is not None]
        if sum(given) > 1:
            raise UsageError("give only one of -p PID, -n NAME and -- COMMAND")
        if not any(given):
            raise UsageError("which process? Give -p PID, -n NAME, or -- COMMAND to launch one")
        if self.command is not None and not (self.command and self.command[0]):
            raise UsageError("there is no command behind --")

    @property
    def launched(self) -> bool:
        return self.command is not None


ProbesArgument: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PROBE...", help="Probes, each one shell word; `sidestep --grammar` explains them."
    ),
]
PidOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "-p", "--pid", metavar="PID", min=1, max=LARGEST_PID, help="The running process with this id."
    ),
]
NameOption: TypeAlias = Annotated[
    str | None, typer.Option("-n", "--name", metavar="NAME", help="The running process with this name.")
]
FileOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("-f", "--file", metavar="ELF", help="A program or shared library, instead of a process."),
]
DurationOption: TypeAlias = Annotated[
    float | None,
    typer.Option("--duration", metavar="SECONDS", min=0.0, help="Detach after this time."),
]
LimitOption: TypeAlias = Annotated[
    int | None,
    typer.Option("--limit", metavar="N", min=1, help="Detach after N hits; count may see some more."),
]
OutputOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="Write results into this file. Without it, those of a launched command go to standard error.",
    ),
]
FormatOption: TypeAlias = Annotated[
    Format, typer.Option("--format", help="Text for people, or one JSON object a line.")
]
ThreadOption: TypeAlias = Annotated[
    int | None,
    typer.Option("--tid", metavar="TID", min=1, max=LARGEST_PID, help="Only hits of this thread."),
]
CommOption: TypeAlias = Annotated[
    str | None, typer.Option("--comm", metavar="NAME", help="Only hits of threads with this name.")
]
SeccompOption: TypeAlias = Annotated[
    bool,
    typer.Option("--allow-seccomp", help="Probe a process that filters system calls; that may kill it."),
]
