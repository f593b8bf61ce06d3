"""Tables of code addresses that a `switch` jumps by: found without decoding, from the addresses that code takes.

GCC and LLVM compile a `switch` in position-independent code to a table of signed 32-bit numbers, each a label
minus the table's own address, which a rip-relative `lea` takes:

    lea    TABLE(%rip), %rdx
    movslq (%rdx,%rax,4), %rax
    add    %rdx, %rax
    jmp    *%rax

So every address that any `lea` takes is tried as such a table. Its first number must lead into code; text, other
data and most code fail there. Where a table ends is not written anywhere: reading goes on up to the next table, as
long as the numbers lead into code. That finds too many labels rather than too few.

Tables of 64-bit addresses have relocations in position-independent code; in other code every constant counts as a
label (references.search_constants).
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence

from sidestep.address import Range
from sidestep.arch.x86_64.references import CodeBytes, Reference

_signed_32 = struct.Struct("<i").unpack_from
# A switch with more labels than this is taken to end here; GCC's largest real ones have some thousands.
_LONGEST_TABLE = 1 << 16


class JumpTables:
    """`bases`: the addresses of what look like tables; `labels`: every code address that they lead to, ascending."""

    __slots__ = ("bases", "labels")

    def __init__(self, bases: Iterable[int], labels: array[int]) -> None:
        self.bases = frozenset(bases)
        self.labels = labels


def find_jump_tables(
    taken: Sequence[Reference],
    stretches: Sequence[CodeBytes],
    code: Sequence[Range],
) -> JumpTables:
    """`taken` are the addresses that code takes; `stretches` all bytes of the file that may hold tables, ascending;
    `code` the executable ranges."""
    starts = [stretch.start for stretch in stretches]
    low = min((each.start for each in code), default=0)
    high = max((each.end for each in code), default=0)
    single = len(code) == 1
    bases: set[int] = set()
    for base in {reference.target for reference in taken}:
        index = bisect_right(starts, base) - 1
        if index < 0:
            continue
        start, content = stretches[index]
        offset = base - start
        if offset + 4 > len(content):
            continue
        label = base + _signed_32(content, offset)[0]
        if low <= label < high and (single or any(label in each for each in code)):
            bases.add(base)
    labels: set[int] = set()
    for base in bases:
        start, content = stretches[bisect_right(starts, base) - 1]
        offset = base - start
        last = min(len(content) - 3, offset + 4 * _LONGEST_TABLE)
        for at in range(offset, last, 4):
            label = base + _signed_32(content, at)[0]
            if not (low <= label < high and (single or any(label in each for each in code))):
                break
            if at != offset and start + at in bases:
                break
            labels.add(label)
    return JumpTables(bases, array("Q", sorted(labels)))
