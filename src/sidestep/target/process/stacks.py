"""Saved instruction pointers: values on the threads' stacks that point into given ranges of code.

Return addresses and the frames of interrupted signal contexts both lie there. A value that only looks like an
address of code is taken for one: that errs on the safe side.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections.abc import Iterable, Sequence

from sidestep.address import Range
from sidestep.maps import Mapping
from sidestep.target.process.process import Window

LARGEST_STACK = 64 << 20
# struct rt_sigframe: the restorer's address, then the user context; sigcontext has rsp behind 15 registers.
SAVED_STACK_POINTER = 8 + 40 + 15 * 8


class CodeRanges:
    """Ranges of code to look for; `in` tells whether an address lies in one of them."""

    def __init__(self, ranges: Iterable[Range]) -> None:
        self._ranges = sorted(ranges)
        self._starts = [r.start for r in self._ranges]
        high = {page for r in self._ranges for page in range(r.start >> 24, (r.end - 1 >> 24) + 1)}
        # The upper five bytes of a little-endian address pick candidates at the speed of a regular
        # expression.
        suffixes = b"|".join(re.escape(page.to_bytes(5, "little")) for page in sorted(high))
        self._pattern = re.compile(b"(?s)" + suffixes) if high else None

    def __contains__(self, address: int) -> bool:
        at = bisect_right(self._starts, address) - 1
        return at >= 0 and address < self._ranges[at].end

    def found_in(self, stack: bytes) -> list[int]:
        """The aligned 8-byte values of a stack (that starts aligned) which lie in a range."""
        if self._pattern is None:
            return []
        values = []
        for match in self._pattern.finditer(stack):
            at = match.start() - 3
            if at >= 0 and at % 8 == 0:
                value = int.from_bytes(stack[at : at + 8], "little")
                if value in self:
                    values.append(value)
        return values


def saved_ips(window: Window, ranges: Sequence[Range]) -> set[int]:
    """Every address in `ranges` that stands on a stack of a stopped thread, its signal frames included."""
    code = CodeRanges(ranges)
    if not ranges:
        return set()
    restorer = window.process.gadgets(window.maps).restorer
    starts = [mapping.start for mapping in window.maps]
    found: set[int] = set()
    for thread in window:
        pointers, seen = [thread.registers.rsp & ~7], set[int]()
        while pointers:
            pointer = pointers.pop()
            mapping = _mapping_of(window.maps, starts, pointer)
            if mapping is None or mapping.start in seen:
                continue
            seen.add(mapping.start)
            stack = window.memory.read_available(pointer, min(mapping.end - pointer, LARGEST_STACK))
            found.update(code.found_in(stack))
            if restorer:
                pointers += _interrupted_stacks(stack, restorer)
    return found


def _mapping_of(maps: Sequence[Mapping], starts: Sequence[int], address: int) -> Mapping | None:
    at = bisect_right(starts, address) - 1
    return maps[at] if at >= 0 and address < maps[at].end else None


def _interrupted_stacks(stack: bytes, restorer: int) -> list[int]:
    """The stack pointers that signal frames on this stack will restore (they differ with an alternate
    stack)."""
    needle, pointers, at = struct.pack("<Q", restorer), [], -1
    while (at := stack.find(needle, at + 1)) >= 0:
        saved = stack[at + SAVED_STACK_POINTER : at + SAVED_STACK_POINTER + 8]
        if len(saved) == 8:
            pointers.append(int.from_bytes(saved, "little") & ~7)
    return pointers
