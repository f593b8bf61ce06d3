"""The functions of one file: by name, by glob, by address.

Rules for names:

* `malloc` means the default version (`name@@VERSION`); `memcpy@GLIBC_2.2.5` means that one. Where a global
  symbol
  has the name, static functions of the same name are not meant.
* A C++ or Rust function is found by its mangled name, its readable name, or that without parameters.
* Cold parts (`f.cold`) are never entries: no name and no glob finds them; addresses in them do.
* Clones (`f.isra.0`, `f.constprop.0`, `f.part.0`) are functions of their own, found by their full name, or
  by a
  glob that holds a dot. `f*` does not find them: it means calls of functions that somebody wrote.
* Of several names of one address the one is shown that was asked for (by a glob: of those that match), else
  the one that people expect: of a function before a label, the default version, visible to others, no
  clone, without an underscore in front, global before weak (`memcmp`, not `bcmp`), with fewer underscores,
  shorter, the first by the alphabet.
* A function without a symbol is called `sub_ADDRESS` (its ELF address). Globs find it only when they start
  with `sub_`.
"""

from __future__ import annotations

import fnmatch
import re
import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from sidestep.symbols import names
from sidestep.symbols.demangle import MANGLED, demangle, is_mangled, readable, squeezed
from sidestep.symbols.eh_frame import FdeTable
from sidestep.symbols.elf import ElfFile
from sidestep.symbols.symbol_table import (
    STB_LOCAL,
    STB_WEAK,
    STT_FUNC,
    STT_GNU_IFUNC,
    FunctionRows,
    SymbolTable,
    has_symbol,
    read_tables,
)

_MOST_ALIASES = 64
_MOST_CHARACTERS = 1 << 27
"""The names of one answer are no longer than this together: in a file they may overlap."""
_MOST_ENCLOSING = 64
_DEMANGLE_SECONDS = 20.0
"""How long one search may demangle names. Hostile files hold names that take 10 ms each."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a file. Addresses are the file's own, without the load bias.

    symbol   the linkage name it was looked up by, else the best of its names; `@VERSION` if not the
             default one
    kind     "ifunc": `start` is the resolver, which returns the code that callers get
    aliases  every other name of the same address
    is_part  it is a piece of another function that is only jumped into, not called
    """

    symbol: str
    start: int
    end: int
    kind: Literal["func", "ifunc"] = "func"
    aliases: tuple[str, ...] = ()
    is_part: bool = False

    @property
    def name(self) -> str:
        """The symbol, demangled if it is mangled: `ns::f(int)`."""
        return readable(self.symbol)

    @property
    def is_unnamed(self) -> bool:
        """Whether there is no symbol: the name is made from the address."""
        return self.symbol == f"sub_{self.start:x}"


class FunctionTable:
    """All functions of a file. Made quickly; what costs more is computed when it is used."""

    def __init__(self, elf: ElfFile) -> None:
        self.elf = elf
        self._functions: dict[int, Function] = {}
        self._remembered = 0

    @cached_property
    def _has_clones(self) -> bool:
        """Whether suffixes mean what C compilers mean: in Go, `main.cold` is a function like any other."""
        return self.elf.section(".gopclntab") is None

    def _is_part(self, name: str) -> bool:
        return "." in name and names.is_part(name) and self._has_clones

    def _is_clone(self, name: str) -> bool:
        return "." in name and names.is_clone(name) and self._has_clones

    @cached_property
    def _tables(self) -> list[SymbolTable]:
        return read_tables(self.elf)

    @cached_property
    def _rows(self) -> FunctionRows:
        rows = FunctionRows(self.elf, self._tables)
        self._tables = [table._replace(symbols=b"", versions=array("H")) for table in self._tables]
        return rows

    def _may_name(self, piece: str) -> bool:
        """Whether a symbol's name may hold `piece`. A quick no, so that most modules are never indexed."""
        raw = piece.encode("utf-8", "surrogateescape")
        return any(raw in table.strings for table in self._tables)

    def mentions(self, name: str) -> bool:
        """Whether a symbol has exactly this name, imported ones included."""
        return self._may_name(name) and has_symbol(self.elf, name)

    @cached_property
    def frames(self) -> FdeTable:
        """The unwind entries of the file."""
        return FdeTable(self.elf)

    @cached_property
    def starts(self) -> Sequence[int]:
        """Every address where a function, a part of one or a label starts, ascending: no function crosses one
        unless its symbol says so."""
        return array("Q", sorted({*self._rows.starts, *self.frames.starts}))

    @cached_property
    def _order(self) -> array[int]:
        return array("I", sorted(range(len(self._rows)), key=self._rows.starts.__getitem__))

    @cached_property
    def _ordered_starts(self) -> array[int]:
        starts = self._rows.starts
        return array("Q", [starts[row] for row in self._order])

    @cached_property
    def _linkage_stubs(self) -> list[tuple[int, int]]:
        return [
            (section.address, section.address + section.size)
            for section in self.elf.sections
            if section.name.startswith((".plt", ".iplt"))
        ]

    def at(self, start: int) -> Function | None:
        """The function that starts at exactly this address (parts included)."""
        function = self._functions.get(start)
        if function is None:
            function = self._make(start)
            if function is not None:
                self._remember(function)
        return function

    def _remember(self, function: Function) -> None:
        self._remembered += 256 + len(function.symbol) + sum(map(len, function.aliases))
        if self._remembered > _MOST_CHARACTERS // 4:
            self._functions.clear()
            self._remembered = 0
        self._functions[function.start] = function

    def containing(self, address: int) -> Function | None:
        """The innermost function whose bytes include the address; a part under its own name."""
        starts = self.starts
        index = bisect_right(starts, address) - 1
        fallback: Function | None = None
        for position in range(index, max(index - _MOST_ENCLOSING, -1), -1):
            function = self.at(starts[position])
            if function is None or not function.start <= address < function.end:
                continue
            if self._is_sized(function.start):
                return function
            fallback = fallback or function
        return fallback

    def named(self, name: str) -> list[Function]:
        """The functions that an exact name stands for, by address; several if it is ambiguous."""
        if not self._may_name(name.partition("@")[0]):
            return self._unnamed(name) or self._demangled(name)
        rows = [row for row in self._rows.find(name) if not self._is_part(self._rows.name(row))]
        exact = [row for row in rows if self._rows.name(row) == name.partition("@")[0]]
        rows = exact or rows
        if "@" not in name:
            rows = [row for row in rows if self._rows.is_default(row)] or rows
        if rows:
            rows = [row for row in rows if self._rows.infos[row] >> 4 != STB_LOCAL] or rows
            return self._collect((row, self._rows.qualified_name(row)) for row in rows)
        return self._unnamed(name) or self._demangled(name)

    def matching(self, glob: str) -> list[Function]:
        """The functions whose mangled or readable name (with or without parameters) matches, by address."""
        functions = self._collect(self._matching_rows(glob))
        if glob.startswith("sub_"):
            matches = re.compile(fnmatch.translate(glob)).match
            unnamed = (self.at(start) for start in self.frames.starts if matches(f"sub_{start:x}"))
            functions += [function for function in unnamed if function and function.is_unnamed]
            functions.sort(key=lambda function: function.start)
        return functions

    def _matching_rows(self, glob: str) -> Iterator[tuple[int, str]]:
        matches = re.compile(fnmatch.translate(glob)).match
        loose = re.compile(fnmatch.translate(squeezed(glob))).match
        clones = "." in glob
        pieces = names.needles(glob)
        deadline = time.monotonic() + _DEMANGLE_SECONDS
        rows = self._rows
        if not all(map(self._may_name, pieces)):
            return
        for row, name in enumerate(rows.names()):
            if "." in name and (self._is_part(name) or (not clones and self._is_clone(name))):
                continue
            if matches(name) or ("." in name and matches(names.without_renaming(name))):
                yield row, rows.qualified_name(row)
            elif (
                name.startswith(MANGLED)
                and all(piece in name for piece in pieces)
                and time.monotonic() < deadline
            ):
                forms = demangle(name)
                if forms and (loose(squeezed(forms.signature)) or loose(squeezed(forms.plain))):
                    yield row, name

    def close_names(self, name: str) -> list[str]:
        """At most three names that somebody who typed `name` may have meant."""
        return names.close_names(name, self._all_names(name))

    def all(self) -> Iterator[Function]:
        """Every function, part and clone with a symbol or an unwind entry, by address."""
        return (function for start in self.starts if (function := self.at(start)) is not None)

    def _all_names(self, like: str) -> Iterator[str]:
        deadline = time.monotonic() + 0.3
        for name in self._rows.names():
            if self._is_part(name):
                continue
            if not is_mangled(name):
                yield name
            elif time.monotonic() < deadline:
                forms = demangle(name)
                if forms:
                    yield forms.plain
                    if "::" not in like:
                        yield forms.plain.rpartition("::")[2]

    def _demangled(self, name: str) -> list[Function]:
        pieces = names.needles(name)
        if not all(map(self._may_name, pieces)) or not any(map(self._may_name, MANGLED)):
            return []
        wanted = squeezed(name)
        deadline = time.monotonic() + _DEMANGLE_SECONDS
        with_parameters: list[tuple[int, str]] = []
        without: list[tuple[int, str]] = []
        for row, symbol in enumerate(self._rows.names()):
            if not is_mangled(symbol) or self._is_clone(symbol):
                continue
            if not all(piece in symbol for piece in pieces):
                continue
            if time.monotonic() > deadline:
                break
            forms = demangle(symbol)
            if forms is None:
                continue
            if wanted in (squeezed(forms.signature), squeezed(forms.full)):
                with_parameters.append((row, symbol))
            elif wanted == squeezed(forms.plain):
                without.append((row, symbol))
        return self._collect(with_parameters or without)

    def _unnamed(self, name: str) -> list[Function]:
        if not re.fullmatch(r"sub_[0-9a-f]{1,16}", name):
            return []
        function = self.at(int(name[4:], 16))
        return [function] if function and function.symbol == name else []

    def _collect(self, rows: Iterable[tuple[int, str]]) -> list[Function]:
        """One function for each address, under the best of the names that were found for it."""
        best: dict[int, tuple[int, str]] = {}
        characters = 0
        for row, name in rows:
            characters += len(name)
            if characters > _MOST_CHARACTERS:
                break
            start = self._rows.starts[row]
            known = best.get(start)
            if known is None or (name != known[1] and self._rank(row, name) < self._rank(*known)):
                best[start] = (row, name)
        functions: list[Function] = []
        for start, (row, name) in sorted(best.items()):
            function = self.at(start)
            if function is None:
                continue
            characters += len(function.symbol) + sum(map(len, function.aliases))
            if characters > 2 * _MOST_CHARACTERS:
                break
            if function.symbol != name:
                others = [function.symbol, *(alias for alias in function.aliases if alias != name)]
                function = replace(function, symbol=name, aliases=tuple(others))
            if function.kind == "ifunc" and self._rows.infos[row] & 15 != STT_GNU_IFUNC:
                function = replace(function, kind="func")  # The resolver was asked for by its own name.
            functions.append(function)
        return functions

    def _rank(self, row: int, name: str) -> tuple[bool, bool, bool, bool, bool, bool, int, int, str]:
        """The smallest is the best name of an address."""
        info = self._rows.infos[row]
        return (
            info & 15 not in (STT_FUNC, STT_GNU_IFUNC),
            "@" in name,
            info >> 4 == STB_LOCAL,
            self._is_clone(name),
            name.startswith("_"),
            info >> 4 == STB_WEAK,
            len(name) - len(name.lstrip("_")),
            len(name),
            name,
        )

    def _rows_at(self, start: int) -> array[int]:
        first = bisect_left(self._ordered_starts, start)
        last = bisect_right(self._ordered_starts, start, first)
        return self._order[first : min(last, first + _MOST_ALIASES)]

    def _is_sized(self, start: int) -> bool:
        return any(self._rows.sizes[row] for row in self._rows_at(start))

    def _make(self, start: int) -> Function | None:
        rows = self._rows_at(start)
        if not rows:
            entry = self.frames.at(start)
            if entry is None or any(low <= start < high for low, high in self._linkage_stubs):
                return None
            return Function(f"sub_{start:x}", start, self._clamp(start, entry.end))
        size = 0
        indirect = False
        by_name: dict[str, int] = {}
        for row in rows:
            by_name[self._rows.qualified_name(row)] = row
            size = max(size, self._rows.sizes[row])
            indirect = indirect or self._rows.infos[row] & 15 == STT_GNU_IFUNC
        by_name.pop("", None)
        symbols = list(by_name) or [f"sub_{start:x}"]
        if len(symbols) > 1:
            symbols.sort(key=lambda name: self._rank(by_name[name], name))
        end = self._clamp(start, start + size) if size else self._end_without_size(start)
        return Function(
            symbols[0],
            start,
            end,
            "ifunc" if indirect else "func",
            tuple(symbols[1:]),
            all(self._is_part(name) for name in symbols),
        )

    def _end_without_size(self, start: int) -> int:
        index = bisect_right(self.starts, start)
        limit = self.starts[index] if index < len(self.starts) else 1 << 62
        entry = self.frames.containing(start)
        return self._clamp(start, min(limit, entry.end) if entry else limit)

    def _clamp(self, start: int, end: int) -> int:
        for text_start, text_end in self.elf.text:
            if text_start <= start < text_end:
                return min(end, text_end)
        return start
