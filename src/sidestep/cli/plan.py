"""What trace and count are asked to do, and the options that say it: both take them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sidestep.cli.options import (
    Choice,
    CommOption,
    DurationOption,
    Format,
    FormatOption,
    Invocation,
    LimitOption,
    NameOption,
    OutputOption,
    PidOption,
    ProbesArgument,
    SeccompOption,
    ThreadOption,
    UsageError,
)
from sidestep.errors import ProbeSyntaxError

if TYPE_CHECKING:
    from sidestep.spec import ProbeSpec


@dataclass(frozen=True, slots=True)
class Plan:
    """What the options of trace and count ask for. Raises UsageError, and ProbeSyntaxError for a text."""

    choice: Choice
    probes: tuple[str, ...]
    duration: float | None = None
    limit: int | None = None
    output: Path | None = None
    format: Format = Format.TEXT
    tid: int | None = None
    comm: str | None = None
    allow_seccomp: bool = False
    is_last: bool = True
    """Whether the process ends with the run."""
    filtered: bool = field(init=False)
    globs: bool = field(init=False)

    def __post_init__(self) -> None:
        if not self.probes:
            raise UsageError("which function? Give a probe, such as 'libc:malloc'")
        if self.format is Format.JSON and self.choice.launched and self.output is None:
            raise UsageError("--format json needs -o FILE here: the command uses the standard streams itself")
        if self.tid is not None and self.choice.launched:
            raise UsageError("--tid needs a running process: nobody knows the threads of a command before")
        if self.duration is not None and not math.isfinite(self.duration):
            raise UsageError("--duration takes a number of seconds")
        specs = parse_words(self.probes)
        filtered = any(spec.condition for spec in specs) or self.tid is not None or self.comm is not None
        object.__setattr__(self, "filtered", filtered)
        object.__setattr__(self, "globs", any(spec.where.is_glob for spec in specs))


def parse_words(words: Sequence[str]) -> list[ProbeSpec]:
    """The probes of a command line. Whoever left out the quotes around one is told so."""
    from sidestep.spec import parse

    specs: list[ProbeSpec] = []
    for word in words:
        try:
            specs.append(parse(word))
        except ProbeSyntaxError as error:
            if specs and error.column == 0:
                hint = "a probe is one shell word: put all of it between single quotes"
                raise ProbeSyntaxError(error.text, 0, error.message, hint) from None
            raise
    return specs


def planned(run: Callable[..., int]) -> Callable[..., None]:
    """The command that does what `run` does with a plan: it has the options of `_make_plan`, then those of
    `run`, and ends with the exit code that `run` returns."""
    shared = inspect.signature(_make_plan, eval_str=True).parameters
    own = list(inspect.signature(run, eval_str=True).parameters.values())[1:]

    @wraps(run)
    def command(**options: Any) -> None:
        plan = _make_plan(**{name: options.pop(name) for name in shared})
        raise typer.Exit(run(plan, **options))

    command.__dict__["__signature__"] = inspect.Signature([*shared.values(), *own])
    return command


def _make_plan(
    context: typer.Context,
    probes: ProbesArgument = None,
    pid: PidOption = None,
    name: NameOption = None,
    duration: DurationOption = None,
    limit: LimitOption = None,
    output: OutputOption = None,
    format: FormatOption = Format.TEXT,
    tid: ThreadOption = None,
    comm: CommOption = None,
    allow_seccomp: SeccompOption = False,
) -> Plan:
    invocation: Invocation = context.obj
    choice = Choice(pid, name, invocation.command)
    return Plan(choice, tuple(probes or ()), duration, limit, output, format, tid, comm, allow_seccomp)
