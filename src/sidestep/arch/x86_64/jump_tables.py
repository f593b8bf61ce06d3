"""Tables of code addresses that a `switch` jumps by: found without decoding, from the addresses that code
takes.

GCC and LLVM compile a `switch` in position-independent code to a table of signed 32-bit numbers, each a
label minus the table's own address, which a rip-relative `lea` takes:

    lea    TABLE(%rip), %rdx
    movslq (%rdx,%rax,4), %rax
    add    %rdx, %rax
    jmp    *%rax

So every address that any `lea` takes is tried as such a table. Its first number must lead into code; text,
other data and most code fail there. Hand-written tables may start with a few zeros that are never used.
Where a table ends is not written anywhere: reading goes on up to the next table, as long as the numbers
lead into code. That finds too many labels rather than too few.

Tables of 64-bit addresses have relocations in position-independent code; in other code every constant
counts as a label (references.search_constants).
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise

from sidestep.address import Range
from sidestep.arch.x86_64.references import CodeBytes

_signed_32 = struct.Struct("<i").unpack_from
# A switch with more labels than this is taken to end here; GCC's largest real ones have some thousands.
_LONGEST_TABLE = 1 << 16
_MOST_UNUSED = 8
_ZERO = bytes(4)


class JumpTables:
    """`bases`: the addresses of what look like tables; `labels`: every code address that they lead to,
    ascending."""

    __slots__ = ("bases", "labels")

    def __init__(self, bases: Iterable[int], labels: Iterable[int]) -> None:
        self.bases = frozenset(bases)
        self.labels = array("Q", sorted(labels))


def find_jump_tables(
    taken: Iterable[int], stretches: Sequence[CodeBytes], code: Sequence[Range]
) -> JumpTables:
    """`taken` are the addresses that code takes; `stretches` all bytes of the file that may hold tables,
    ascending; `code` the executable ranges."""
    starts = [stretch.start for stretch in stretches]
    low = min((each.start for each in code), default=0)
    high = max((each.end for each in code), default=0)
    holes = [Range(one.end, other.start) for one, other in pairwise(code)]
    signed_32 = _signed_32

    def is_code(address: int) -> bool:
        return low <= address < high and not any(address in hole for hole in holes)

    # Each table, and how far from its address the first number stands that leads into code.
    tables: dict[int, int] = {}
    late: dict[int, int] = {}
    addresses = array("q", sorted(set(taken)))
    for start, content in stretches:
        first, last = bisect_left(addresses, start), bisect_right(addresses, start + len(content) - 4)
        inside = addresses[first:last]
        for base in [base for base in inside if low <= base + signed_32(content, base - start)[0] < high]:
            if is_code(base + signed_32(content, base - start)[0]):
                tables[base] = 0
        for base in [base for base in inside if base % 4 == 0 and content.startswith(_ZERO, base - start)]:
            offset = base - start
            end = min(offset + 4 * _MOST_UNUSED, len(content) - 4)
            while offset < end and content.startswith(_ZERO, offset):
                offset += 4
            if base not in tables and is_code(base + signed_32(content, offset)[0]):
                late[base] = offset + start - base
    for base, distance in late.items():
        # If a table starts in between, it is that one's number.
        if not any(between in tables for between in range(base + 4, base + distance + 1, 4)):
            tables[base] = distance
    labels: set[int] = set()
    for base, distance in tables.items():
        start, content = stretches[bisect_right(starts, base) - 1]
        offset = base - start + distance
        for at in range(offset, min(len(content) - 3, offset + 4 * _LONGEST_TABLE), 4):
            label = base + signed_32(content, at)[0]
            if not low <= label < high or (start + at != base and start + at in tables):
                break
            if holes and not is_code(label):
                break
            labels.add(label)
    return JumpTables(tables, labels)
