"""`sidestep check`: can it be probed, how, and why."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sidestep.address import Range
from sidestep.cli.disassembly import LEGEND, Marks, disassemble
from sidestep.cli.interrupt import Interrupt
from sidestep.cli.modules import Loaded, choose_modules
from sidestep.cli.options import (
    FileOption,
    Format,
    FormatOption,
    Invocation,
    NameOption,
    PidOption,
    ProbesArgument,
    UsageError,
    choose_pid,
)
from sidestep.cli.output import plural, result_stream, say, write_json, write_lines, write_table
from sidestep.cli.plan import parse_words
from sidestep.cli.progress import Progress
from sidestep.cli.tables import Column
from sidestep.errors import Refusal
from sidestep.events.layout import JUMP_SIZE
from sidestep.symbols.printable import clean

if TYPE_CHECKING:
    from sidestep.safety.region import Placement
    from sidestep.spec import ProbeSpec
    from sidestep.symbols.resolve import Location

_IN_FULL = 3
"""With more probepoints than this, each gets one line instead of a disassembly."""

_COLUMNS = (
    Column("ADDRESS", right=True),
    Column("MODULE", minimum=8, rank=2),
    Column("PROBE", minimum=16),
    Column("VERDICT"),
    Column("WHY", minimum=10, rank=3),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """The verdict about one probepoint."""

    location: Location
    verdict: Placement | Refusal
    named: bool = True
    """Whether it was asked for by its name, not by a glob."""
    nearest: Location | None = None

    @property
    def refusal(self) -> Refusal | None:
        return self.verdict if isinstance(self.verdict, Refusal) else None

    @property
    def place(self) -> str:
        location = self.location
        return clean(location.place)

    @property
    def hint(self) -> str:
        """What to do about a refusal, with the instruction that could be probed instead."""
        refusal = self.refusal
        if refusal is None or not (self.named and refusal.reason.helps_to_move):
            return "" if refusal is None else refusal.reason.hint
        if self.nearest is None:
            return f"{refusal.reason.hint}; none near it can be"
        place = f"{self.location.module.name}:{self.nearest.place}"
        return f"{refusal.reason.hint}: {clean(shlex.quote(place))} can be"

    @property
    def why(self) -> str:
        refusal = self.refusal
        if refusal is not None:
            return refusal.detail or refusal.reason.sentence
        assert not isinstance(self.verdict, Refusal)
        return "; ".join(self.verdict.notes)

    @property
    def row(self) -> tuple[str, ...]:
        refusal = self.refusal
        name = refusal.reason.name if refusal is not None else getattr(self.verdict, "tactic", "")
        return f"{self.location.address:#x}", self.location.module.name, self.place, name, clean(self.why)

    @property
    def fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "type": "check",
            "probe": self.place,
            "module": self.location.module.name,
            "address": self.location.address,
            "note": self.location.note,
        }
        if isinstance(self.verdict, Refusal):
            nearest = None if self.nearest is None else clean(self.nearest.place)
            reason, detail = self.verdict.reason.name, self.verdict.detail
            return fields | {"ok": False, "reason": reason, "detail": detail, "nearest": nearest}
        dcr = [self.verdict.dcr.start, self.verdict.dcr.end]
        return fields | {
            "ok": True,
            "method": self.verdict.tactic,
            "dcr": dcr,
            "notes": list(self.verdict.notes),
        }


def check(
    context: typer.Context,
    probes: ProbesArgument = None,
    pid: PidOption = None,
    name: NameOption = None,
    file: FileOption = None,
    every: Annotated[
        bool, typer.Option("--all", help="Count the verdicts about all instructions of -f ELF.")
    ] = False,
    format: FormatOption = Format.TEXT,
) -> None:
    """Say whether and how a probe can be placed.

    Shows the instructions that a jump would replace. Nothing is changed.

    Exit code 1 if a probe that is named cannot be placed, or nothing that a glob matches can.
    """
    invocation: Invocation = context.obj
    invocation.refuse("check")
    if every:
        if file is None or probes:
            raise UsageError("--all goes with -f ELF, and without a probe")
        from sidestep.cli.census import report_all

        report_all(file, format)
        return
    if not probes:
        raise UsageError("which function? Give a probe, such as 'libc:malloc'")
    specs = parse_words(probes)
    if file is not None:
        answers = _offline(choose_modules(pid, name, file), specs)
    else:
        answers = _attached(choose_pid(pid, name), specs)
    _write([answer for each in answers for answer in each], format)
    if any(all(answer.refusal is not None for answer in each) for each in answers):
        raise typer.Exit(1)


def _offline(loaded: Loaded, specs: Sequence[ProbeSpec]) -> list[list[Answer]]:
    """Verdicts about a file that nobody runs, for each probe."""
    from sidestep.kprobes.texts import refuse_return
    from sidestep.safety.nearby import nearest
    from sidestep.safety.verdict import verdict
    from sidestep.symbols.resolve import resolve

    context = file_context(loaded)

    def judge(location: Location, named: bool) -> Answer:
        found = verdict(context, location.address)
        other = None
        if named and isinstance(found, Refusal) and location.function is not None:
            address = nearest(context, location.address, lambda address: verdict(context, address))
            if address is not None:
                other = replace(location, offset=address - location.function.start, address=address)
        return Answer(location, found, named, other)

    for spec in specs:
        refuse_return(spec)
    return [
        [judge(each, not spec.where.is_glob) for each in resolve(loaded.modules, spec.where, loaded.read)]
        for spec in specs
    ]


def _attached(pid: int, specs: Sequence[ProbeSpec]) -> list[list[Answer]]:
    from sidestep import attach

    with Interrupt() as interrupt:
        target = attach(pid, allow_seccomp=True)
        try:
            with Progress(interrupt.check) as progress:
                checked = [(spec, target.check(spec, progress)) for spec in specs]
        finally:
            target.detach()
        interrupt.check()
    return [
        [Answer(each.location, each.verdict, not spec.where.is_glob, each.nearest) for each in found]
        for spec, found in checked
    ]


def _write(answers: Sequence[Answer], format: Format) -> None:
    with result_stream(None, launched=False) as stream:
        if format is Format.JSON:
            write_json(stream, [answer.fields for answer in answers])
        elif len(answers) <= _IN_FULL:
            for number, answer in enumerate(answers):
                write_lines(stream, [*([""] if number else []), *describe(answer)])
        else:
            write_table(stream, _COLUMNS, [answer.row for answer in answers])
            refused = sum(answer.refusal is not None for answer in answers)
            say(f"{plural(len(answers) - refused, 'function')} can be probed, {refused:,} cannot")


def describe(answer: Answer) -> list[str]:
    """The verdict in words, and the disassembly."""
    location = answer.location
    where = f"{answer.place} in {location.module.name}"
    run_time = f" (at {location.address:#x})" if location.module.bias else ""
    lines = [f"{where}{run_time}"]
    if location.note:
        lines.append(f"  {location.note}")
    if isinstance(answer.verdict, Refusal):
        refusal = answer.verdict
        detail = f": {refusal.detail}" if refusal.detail else ""
        lines.append(f"  cannot be probed: {refusal.reason.sentence}{detail} [{refusal.reason.name}]")
        lines += [f"  {answer.hint}"] if answer.hint else []
    else:
        lines.append(f"  can be probed: {_tactic(answer.verdict)}")
        lines += [f"  {note}" for note in answer.verdict.notes]
    if location.function is None:
        return lines
    listing = disassemble(location.module, location.function, _marks(answer))
    return [*lines, "", *listing, "", LEGEND]


def _tactic(placement: Placement) -> str:
    count = len(placement.instructions)
    match placement.tactic:
        case "jump":
            return f"by a jump in the place of one instruction of {placement.dcr.size} bytes [jump]"
        case "region":
            return f"by a jump over {count} instructions, {placement.dcr.size} bytes [region]"
        case "padding":
            return f"by a jump over {plural(count, 'instruction')} and the padding behind [padding]"


def _marks(answer: Answer) -> Marks:
    """In the file's own addresses. For a refusal, the JTPR that a jump at the address would have had."""
    bias = answer.location.module.bias
    if isinstance(answer.verdict, Refusal):
        address = answer.location.address - bias
        return Marks(address, None, Range(address + 1, address + JUMP_SIZE))
    placement = answer.verdict
    dcr = Range(placement.dcr.start - bias, placement.dcr.end - bias)
    return Marks(placement.address - bias, dcr, Range(dcr.start + 1, dcr.start + JUMP_SIZE))


def file_context(loaded: Loaded) -> Any:
    """What verdicts about the one module of a file are made from."""
    from sidestep.safety.context import ModuleContext

    module = loaded.modules[0]
    return ModuleContext(module.elf, module.functions, name=module.name)
