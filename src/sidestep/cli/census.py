"""`sidestep check -f ELF --all`: the verdict about every instruction of every function of a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sidestep.cli.modules import open_file
from sidestep.cli.options import Format
from sidestep.cli.output import plural, result_stream, write_json, write_lines, write_table
from sidestep.cli.progress import Progress
from sidestep.cli.tables import Column
from sidestep.errors import Reason, Refusal

if TYPE_CHECKING:
    from sidestep.symbols.modules import Module

_COLUMNS = (
    Column("INSTRUCTIONS", right=True),
    Column("SHARE", right=True),
    Column("ENTRIES", right=True, rank=2),
    Column("SHARE", right=True, rank=2),
    Column("VERDICT"),
    Column("WHY", minimum=10, rank=1),
)


@dataclass(slots=True)
class Census:
    """Verdicts, counted by tactic or reason: of all instructions, and of the entries of functions alone."""

    functions: int = 0
    undecoded: int = 0
    """Bytes of functions behind something that is no instruction."""
    instructions: Counter[str | Reason] = field(default_factory=Counter)
    entries: Counter[str | Reason] = field(default_factory=Counter)

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Tactics first, then reasons, the most frequent first."""
        keys = sorted(self.instructions, key=lambda key: (isinstance(key, Reason), -self.instructions[key]))
        return [
            (
                str(self.instructions[key]),
                _share(self.instructions[key], self.instructions.total()),
                str(self.entries[key]),
                _share(self.entries[key], self.entries.total()),
                key.name if isinstance(key, Reason) else key,
                key.sentence if isinstance(key, Reason) else "",
            )
            for key in keys
        ]

    @property
    def fields(self) -> dict[str, Any]:
        return {
            "type": "census",
            "functions": self.functions,
            "undecoded": self.undecoded,
            "instructions": _split(self.instructions),
            "entries": _split(self.entries),
        }


def report_all(file: Path, format: Format) -> None:
    """Counts and writes. May take a minute for a large file: says how far it is."""
    module = open_file(file).modules[0]
    with Progress() as progress:
        census = take(module, progress)
    with result_stream(None, launched=False) as stream:
        if format is Format.JSON:
            write_json(stream, [{"file": str(file), **census.fields}])
            return
        write_table(stream, _COLUMNS, census.rows)
        probed = sum(number for key, number in census.instructions.items() if isinstance(key, str))
        total = census.instructions.total()
        counted = f"{total:,} instructions in {plural(census.functions, 'function')}"
        write_lines(stream, [f"{_share(probed, total)} of {counted} can be probed"])


def take(module: Module, progress: Progress) -> Census:
    from sidestep.safety.context import ModuleContext
    from sidestep.safety.verdict import verdicts

    def searching(done: int, total: int) -> None:
        progress("reading code", done, total)

    census = Census()
    context = ModuleContext(module.elf, module.functions, name=module.name, probes=1 << 20, progress=searching)
    functions = list(_distinct(module))
    for number, (start, end) in enumerate(functions):
        progress("judging functions", number, len(functions))
        addresses, reach = _instructions(module, start, end)
        census.functions += 1
        census.undecoded += end - reach
        for address, verdict in zip(addresses, verdicts(context, addresses), strict=True):
            key = verdict.reason if isinstance(verdict, Refusal) else verdict.tactic
            census.instructions[key] += 1
            if address == start:
                census.entries[key] += 1
    return census


def _distinct(module: Module) -> Iterator[tuple[int, int]]:
    """The bytes of all functions, each byte once: where functions lie in each other, the outer one counts."""
    reach = 0
    for function in module.functions.all():
        if function.start >= reach and function.end > function.start:
            yield function.start, function.end
            reach = function.end


def _instructions(module: Module, start: int, end: int) -> tuple[list[int], int]:
    """The addresses of a function's instructions, and where they end."""
    from sidestep.arch.x86_64.insn import boundaries, decode

    *addresses, reach = boundaries(decode(module.elf.read(start, end - start), start)) or [start]
    return addresses, reach


def _split(counts: Counter[str | Reason]) -> dict[str, dict[str, int]]:
    return {
        "by_method": {key: number for key, number in counts.most_common() if isinstance(key, str)},
        "by_reason": {key.name: number for key, number in counts.most_common() if isinstance(key, Reason)},
    }


def _share(part: int, total: int) -> str:
    return f"{100 * part / total:.1f} %" if total else "-"
