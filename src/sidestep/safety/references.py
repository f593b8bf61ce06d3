"""Which places of a module may refer to an address: searched for one by one, or from a table of all of them.

A table of all references costs 50 ms a megabyte of code to build and serves any number of questions; a
search for the references to one function costs 8 ms a megabyte. Few questions about a module are answered
by searching, many (or a table that an earlier session left in the cache) by the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sidestep.address import Range
from sidestep.arch.x86_64.references import CodeBytes, Reference, ReferenceTable, search, search_constants
from sidestep.safety import cache

# Questions that are searched for before the table is built, and the size of code above which it is built at
# once: the cache then makes the next session fast.
_SEARCHES = 5
_LARGE = 8 << 20
# The reach of one search: what the upper half of a displacement distinguishes.
_WINDOW = 1 << 16


class References:
    """The possible references of one module. `probes` is about how many addresses will be asked for."""

    def __init__(
        self,
        code: Sequence[CodeBytes],
        contents: Sequence[CodeBytes],
        is_pic: bool,
        probes: int = 1,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._code = code
        self._contents = contents
        self._is_pic = is_pic
        self._progress = progress
        self._size = sum(len(each.content) for each in code)
        self._use_table = probes > _SEARCHES or self._size > _LARGE
        self._table: ReferenceTable | None = None
        self._constants: ReferenceTable | None = None
        self._looked_in_cache = False
        self._searched: list[tuple[Range, list[Reference]]] = []
        self._searched_constants: list[tuple[Range, list[Reference]]] = []

    def into(self, first: int, last: int, around: Range) -> list[Reference]:
        """What may refer to `first` up to, not including, `last`. The next questions are likely to be about
        addresses `around` that."""
        table = self._any_table()
        if table is not None:
            return table.into(first, last)
        return self._search(self._searched, search, self._code, first, last, around)

    def constants_into(self, first: int, last: int, around: Range) -> list[Reference]:
        """Where code or data that is not position-independent may hold one of these addresses."""
        if self._is_pic:
            return []
        if self._use_table:
            if self._constants is None:
                whole = Range(self._code[0].start, self._code[-1].end) if self._code else Range(0, 0)
                self._constants = ReferenceTable.build_constants(self._contents, whole)
            return self._constants.into(first, last)
        return self._search(self._searched_constants, search_constants, self._contents, first, last, around)

    def _any_table(self) -> ReferenceTable | None:
        if self._table is None and not self._looked_in_cache:
            self._looked_in_cache = True
            self._table = cache.load(self._code)
        if self._table is None and self._use_table:
            progress = self._progress
            report = None if progress is None else lambda done: progress(done, self._size)
            self._table = ReferenceTable.build(self._code, report)
            cache.store(self._code, self._table)
        return self._table

    def _search(
        self,
        known: list[tuple[Range, list[Reference]]],
        look: Callable[[Sequence[CodeBytes], int, int], list[Reference]],
        where: Sequence[CodeBytes],
        first: int,
        last: int,
        around: Range,
    ) -> list[Reference]:
        for window, found in known:
            if window.start <= first and last <= window.end:
                return [reference for reference in found if first <= reference.target < last]
        window = Range(min(first, max(around.start, first - _WINDOW // 2)),
                       max(last, min(around.end, first + _WINDOW // 2)))  # fmt: skip
        found = look(where, window.start, window.end)
        known.append((window, found))
        if len(known) >= _SEARCHES:
            self._use_table = True
        return [reference for reference in found if first <= reference.target < last]
