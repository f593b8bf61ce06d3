"""`sidestep check -f ELF --all`: the verdict about every instruction of every function of a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sidestep.cli.modules import open_file
from sidestep.cli.options import Format
from sidestep.cli.output import plural, result_stream, say, write_json, write_lines, write_table
from sidestep.cli.progress import Progress
from sidestep.cli.tables import Column
from sidestep.errors import ELF_MALFORMED, Refusal, TargetError, reasons
from sidestep.symbols.printable import clean

if TYPE_CHECKING:
    from sidestep.safety.census import Census
    from sidestep.safety.context import ModuleContext
    from sidestep.symbols.functions import Function
    from sidestep.symbols.modules import Module

_COLUMNS = (
    Column("INSTRUCTIONS", right=True),
    Column("SHARE", right=True),
    Column("ENTRIES", right=True, rank=2),
    Column("SHARE", right=True, rank=2),
    Column("VERDICT"),
    Column("WHY", minimum=10, rank=1),
)


@dataclass(frozen=True, slots=True)
class Result:
    """Verdicts of all instructions, and of the entries of functions alone, counted by tactic or reason."""

    census: Census
    entries: Counter[str]

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Tactics first, then reasons, the most frequent first."""
        sentences = {reason.name: reason.sentence for reason in reasons()}
        total, entries = self.census.instructions, self.entries.total()
        return [
            (
                str(number),
                _share(number, total),
                str(self.entries[name]),
                _share(self.entries[name], entries),
                name,
                sentences.get(name, ""),
            )
            for counts in (self.census.tactics, self.census.refusals)
            for name, number in counts.most_common()
        ]

    @property
    def last_line(self) -> str:
        census = self.census
        placed = sum(number for name, number in self.entries.items() if name in census.tactics)
        every = (
            f"{_share(census.placed, census.instructions)} of {plural(census.instructions, 'instruction')}"
        )
        entry = f"{_share(placed, self.entries.total())} of {plural(self.entries.total(), 'function')}"
        return f"{every} and the entries of {entry} can be probed"

    @property
    def fields(self) -> dict[str, Any]:
        census = self.census
        return {
            "type": "census",
            "functions": census.functions,
            "instructions": census.instructions,
            "undecodable": census.undecodable,
            "by_method": dict(census.tactics.most_common()),
            "by_reason": dict(census.refusals.most_common()),
            "entries": dict(self.entries.most_common()),
            "examples": {name: clean(example) for name, example in census.examples.items()},
        }


def report_all(file: Path, format: Format) -> None:
    """Counts and writes. May take a minute for a large file: says how far it is."""
    with Progress() as progress:
        module = open_file(file).modules[0]
        result = count_all(module, progress)
    damage = module.elf.damage
    if not result.census.functions:
        raise TargetError(str(file), ELF_MALFORMED, damage or "no functions were found in it")
    if damage:
        say(f"{file} is damaged: {damage}")
    with result_stream(None, launched=False) as stream:
        if format is Format.JSON:
            write_json(stream, [{"file": str(file), **result.fields}])
        else:
            write_table(stream, _COLUMNS, result.rows)
            write_lines(stream, [result.last_line])


def count_all(module: Module, progress: Progress) -> Result:
    from sidestep.safety.census import take_census
    from sidestep.safety.context import Circumstances, ModuleContext

    def searching(_: str, done: int, size: int) -> None:
        progress("reading code", done, size)

    functions = [function for function in module.functions.all() if function.end > function.start]
    context = ModuleContext(
        module.elf,
        module.functions,
        name=module.name,
        batch=Circumstances(probes=1 << 20, progress=searching),
    )
    census = take_census(context, functions, lambda done: progress("judging", done, len(functions)))
    return Result(census, _entries(context, functions))


def _entries(context: ModuleContext, functions: Iterable[Function]) -> Counter[str]:
    from sidestep.safety.verdict import verdicts

    starts = [function.start for function in functions if not function.is_part]
    return Counter(
        each.reason.name if isinstance(each, Refusal) else each.tactic for each in verdicts(context, starts)
    )


def _share(part: int, total: int) -> str:
    return f"{100 * part / total:.1f} %" if total else "-"
