"""Saved instruction pointers: where interrupted code will go on, from the signal frames on the threads'
stacks.

Only a signal handler can have interrupted code inside a DCR or inside code of ours. Return addresses never
point there: a call is the last instruction of its DCR, its copy pushes the original return address, and a
routine of ours that is called has the thread's (or the interrupted) instruction pointer in our code as well.
So only signal frames are looked for, by what the kernel puts into each: the user's code and stack segments.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Sequence

from sidestep.address import Range
from sidestep.maps import Mapping
from sidestep.target.process.process import Window

LARGEST_STACK = 64 << 20
# struct sigcontext of <asm/sigcontext.h>: .. rsp, rip, eflags, then cs, gs, fs, ss of 16 bits each.
SEGMENTS = struct.pack("<HHHH", 0x33, 0, 0, 0x2B)
RSP_BEFORE_SEGMENTS, RIP_BEFORE_SEGMENTS = 24, 16


def lying_in(addresses: Iterable[int], ranges: Sequence[Range]) -> set[Range]:
    """Those of `ranges` (without overlaps) that hold one of the addresses."""
    ordered = sorted(ranges)
    starts = [each.start for each in ordered]
    found = set()
    for address in addresses:
        at = bisect_right(starts, address) - 1
        if at >= 0 and address < ordered[at].end:
            found.add(ordered[at])
    return found


def instruction_pointers(window: Window) -> set[int]:
    """Every instruction pointer that a signal frame will restore; frames on other stacks are followed."""
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
            at = -1
            while (at := stack.find(SEGMENTS, at + 1)) >= 0:
                if at % 8 == 0 and at >= RSP_BEFORE_SEGMENTS:
                    rsp, rip = struct.unpack_from("<QQ", stack, at - RSP_BEFORE_SEGMENTS)
                    found.add(rip)
                    pointers.append(rsp & ~7)
    return found


def _mapping_of(maps: Sequence[Mapping], starts: Sequence[int], address: int) -> Mapping | None:
    at = bisect_right(starts, address) - 1
    return maps[at] if at >= 0 and address < maps[at].end else None
