"""`sidestep funcs`: the functions of a process or a file that match a glob."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sidestep.cli.modules import Loaded, choose_modules
from sidestep.cli.options import FileOption, Format, FormatOption, Invocation, NameOption, PidOption
from sidestep.cli.output import plural, result_stream, say, write_json, write_table
from sidestep.cli.tables import Column

if TYPE_CHECKING:
    from sidestep.spec import Where
    from sidestep.symbols.functions import Function
    from sidestep.symbols.modules import Module

_COLUMNS = (
    Column("ADDRESS", right=True),
    Column("SIZE", right=True, rank=1),
    Column("MODULE", minimum=8, rank=2),
    Column("NAME", minimum=16),
    Column("NOTE", minimum=8, rank=3),
)


@dataclass(frozen=True, slots=True)
class Found:
    """One function; `address` is the run-time address, or that in the file."""

    module: Module
    function: Function
    address: int
    note: str

    @property
    def row(self) -> tuple[str, ...]:
        function = self.function
        size = str(function.end - function.start)
        return f"{self.address:#x}", size, self.module.name, function.name, self.note

    @property
    def fields(self) -> dict[str, Any]:
        function = self.function
        return {
            "type": "function",
            "name": function.name,
            "symbol": function.symbol,
            "aliases": list(function.aliases),
            "module": self.module.name,
            "address": self.address,
            "size": function.end - function.start,
            "note": self.note,
        }


def funcs(
    context: typer.Context,
    glob: Annotated[
        str, typer.Argument(metavar="GLOB", help="[MODULE:]NAME, with * ? [abc], as in 'libc:*alloc*'.")
    ],
    pid: PidOption = None,
    name: NameOption = None,
    file: FileOption = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """List the functions that match a glob.

    Columns: address, size in bytes, module, name, notes. The process is not stopped and not changed.
    Exit code 1 if nothing matches.
    """
    from sidestep.spec import parse_where

    invocation: Invocation = context.obj
    invocation.refuse("funcs")
    loaded = choose_modules(pid, name, file)
    found = list(find(loaded, parse_where(glob)))
    with result_stream(None, launched=False) as stream:
        if format is Format.JSON:
            write_json(stream, [each.fields for each in found])
        elif found:
            write_table(stream, _COLUMNS, [each.row for each in found])
    if not found:
        say(nothing_matched(loaded, glob))
        raise typer.Exit(1)
    if format is Format.TEXT:
        say(plural(len(found), "function"))


def find(loaded: Loaded, where: Where) -> Iterator[Found]:
    """Every function that the name or glob stands for, by module. Raises ProbeError NO_SUCH_MODULE."""
    from sidestep.symbols.resolve import functions_matching, functions_named, modules_named

    name = where.symbol or ""
    for module in modules_named(loaded.modules, where.module, str(where)):
        for function in functions_named(module, name) or (
            functions_matching(module, name) if where.is_glob else []
        ):
            address = function.start + module.bias
            yield Found(module, function, address, _note(loaded, module, function))


def nothing_matched(loaded: Loaded, glob: str) -> str:
    """What to say when a name stands for no function, with the names it may have meant."""
    from sidestep.symbols.names import close_names

    wanted = glob.rpartition(":")[2] if "::" not in glob else glob
    damaged = "".join(
        f"\n  {module.path} is damaged: {damage}"
        for module in loaded.modules
        if (damage := module.elf.damage)
    )
    if damaged or any(character in wanted for character in "*?["):
        return f"no function matches {glob}{damaged}"
    candidates = [name for module in loaded.modules for name in module.functions.close_names(wanted)]
    close = close_names(wanted, candidates)
    hint = f"\n  Did you mean {' or '.join(close)}?" if close else ""
    return f"no function is called {glob}{hint}"


def _note(loaded: Loaded, module: Module, function: Function) -> str:
    parts = []
    if function.kind == "ifunc":
        parts.append(_variant(loaded, module, function))
    if function.aliases:
        rest = len(function.aliases) - 3
        parts.append("also " + ", ".join(function.aliases[:3]) + (f" and {rest} more" if rest > 0 else ""))
    return "; ".join(parts)


def _variant(loaded: Loaded, module: Module, function: Function) -> str:
    from sidestep.symbols.ifunc import chosen_variant

    if loaded.pid is None:
        return "IFUNC: its code is chosen when it is loaded"
    variant = chosen_variant(loaded.modules, module, function, loaded.read)
    return f"IFUNC: {variant[1].name}" if variant else "IFUNC: none of its variants was chosen yet"
