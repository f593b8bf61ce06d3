"""Which places of a module may refer to an address: searched for one by one, or from a table of all of them.

A table of all references costs 50 ms a megabyte of code to build and serves any number of questions; a
search for the references to one function costs 8 ms a megabyte. Few questions about a module are answered
by searching, many (or a table that an earlier session left in the cache) by the table.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from sidestep.address import Range
from sidestep.arch.x86_64.references import CodeBytes, Reference, ReferenceTable, search, search_constants
from sidestep.safety import cache

# Questions that are searched for before the table is built, and the size of code above which it is built at
# once: the cache then makes the next session fast.
_SEARCHES = 5
_LARGE = 8 << 20
# The reach of one search: what the upper half of a displacement, or of an address, distinguishes.
_WINDOW = 1 << 16
# Windows that are searched for constants, 1 ms for each megabyte of the file, before their table is built.
_MOST_WINDOWS = 24


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
        self._windows: dict[int, list[Reference]] = {}

    def into(self, first: int, last: int, around: Range) -> list[Reference]:
        """What may refer to `first` up to, not including, `last`. The next questions are likely to be about
        addresses `around` that."""
        table = self._any_table()
        if table is not None:
            return table.into(first, last)
        return self._search(first, last, around)

    def constants_into(self, first: int, last: int) -> list[Reference]:
        """Where code or data that is not position-independent may hold one of these addresses."""
        if self._is_pic:
            return []
        if self._constants is None and len(self._windows) >= _MOST_WINDOWS:
            whole = Range(self._code[0].start, self._code[-1].end) if self._code else Range(0, 0)
            size = sum(len(each.content) for each in self._contents)
            self._constants = ReferenceTable.build_constants(self._contents, whole, self._report(size))
        if self._constants is not None:
            return self._constants.into(first, last)
        found: list[Reference] = []
        for start in range(first - first % _WINDOW, last, _WINDOW):
            window = self._windows.get(start)
            if window is None:
                window = search_constants(self._contents, start, start + _WINDOW)
                self._windows[start] = window
            found += window[bisect_left(window, (first,)) : bisect_left(window, (last,))]
        return found

    def _any_table(self) -> ReferenceTable | None:
        if self._table is None and not self._looked_in_cache:
            self._looked_in_cache = True
            self._table = cache.load(self._code)
        if self._table is None and self._use_table:
            self._table = ReferenceTable.build(self._code, self._report(self._size))
            cache.store(self._code, self._table)
        return self._table

    def _report(self, size: int) -> Callable[[int], None] | None:
        """What a table of `size` bytes tells its progress."""
        progress = self._progress
        return None if progress is None else lambda done: progress(done, size)

    def _search(self, first: int, last: int, around: Range) -> list[Reference]:
        for window, found in self._searched:
            if window.start <= first and last <= window.end:
                return [reference for reference in found if first <= reference.target < last]
        window = Range(min(first, max(around.start, first - _WINDOW // 2)),
                       max(last, min(around.end, first + _WINDOW // 2)))  # fmt: skip
        found = search(self._code, window.start, window.end)
        self._searched.append((window, found))
        if len(self._searched) >= _SEARCHES:
            self._use_table = True
        return [reference for reference in found if first <= reference.target < last]
