"""Saved instruction pointers: where interrupted code will go on, from the signal frames on the threads'
stacks.

Only a signal handler can have interrupted code inside a DCR or inside code of ours. The program's return
addresses never point there: a call is the last instruction of its DCR, and its copy pushes the original
return address. So only signal frames are looked for, by what the kernel puts into each: the user's code and
stack segments. (A routine of ours returns into the buffer that called it: see `addresses_in_use` in poke.py.)
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from sidestep.address import Range
from sidestep.arch.x86_64.frame import RED_ZONE
from sidestep.maps import Mapping
from sidestep.target.process.areas import is_ours
from sidestep.target.process.pagemap import written_pages
from sidestep.target.process.process import Window

LARGEST_STACK = 64 << 20
CHUNK = 16 << 20  # bytes that are read at once
# struct sigcontext of <asm/sigcontext.h>: .. rsp, rip, eflags, then cs, gs, fs, ss of 16 bits each.
SEGMENTS = struct.pack("<HHHH", 0x33, 0, 0, 0x2B)
RSP_BEFORE_SEGMENTS, RIP_BEFORE_SEGMENTS = 24, 16
CONTEXT_BEFORE_SEGMENTS = 184  # where struct ucontext begins; right before it the restorer's address stands


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


class Context(NamedTuple):
    """Where code is, or will go on. From a signal frame on a stack: where its user context is, and where the
    handler returns to."""

    ip: int
    stack_pointer: int
    frame: int = 0
    restorer: int = 0


def instruction_pointers(window: Window, restorer: int | None) -> set[int]:
    """Every instruction pointer that a signal frame will restore; without those of handlers that have yet to
    return to the `restorer`, since a hook there leads them where they belong."""
    contexts = interrupted(window)
    if restorer is None or window.process.hides_contexts:
        return {context.ip for context in contexts}
    # With its stack pointer at the frame a thread has returned, and may be past the hook.
    pointers = {context.stack_pointer for context in contexts}
    pointers.update(thread.registers.rsp for thread in window)
    return {context.ip for context in contexts if context.restorer != restorer or context.frame in pointers}


def interrupted(window: Window) -> set[Context]:
    """What signal frames will restore; frames on other stacks are followed.

    In a process that hides contexts all its own memory is searched, also for copies of signal frames.
    """
    if window.process.hides_contexts:
        return _in_all_memory(window)
    starts = [mapping.start for mapping in window.maps]
    found: set[Context] = set()
    for thread in window:
        pointers, lowest = [thread.registers.rsp & ~7], dict[int, int]()
        while pointers:
            pointer = pointers.pop()
            mapping = _mapping_of(window.maps, starts, pointer)
            if mapping is None:
                continue
            # A handler on a stack in the same mapping may have interrupted code further down.
            end = lowest.get(mapping.start, mapping.end)
            if pointer >= end:
                continue
            lowest[mapping.start] = pointer
            end = min(end + len(SEGMENTS), mapping.end, pointer + LARGEST_STACK)
            stack = window.memory.read_available(pointer, end - pointer)
            for saved in saved_contexts(stack):
                before = saved.at - CONTEXT_BEFORE_SEGMENTS
                restorer = int.from_bytes(stack[before - 8 : before], "little") if before >= 8 else 0
                found.add(Context(saved.rip, saved.rsp, pointer + before, restorer))
                pointers.append(saved.rsp & ~7)
    return found


def _in_all_memory(window: Window) -> set[Context]:
    lowest = window.stacks()
    unused = [  # below the stack pointer and its red zone
        Range(lowest[thread.tid], thread.registers.rsp - RED_ZONE)
        for thread in window
        if thread.tid in lowest
    ]
    found: set[Context] = set()
    own = [m for m in window.maps if m.perms.startswith("rw") and not is_ours(m.path)]
    for pages in written_pages(window.living_thread, own):
        before = b""
        for start in range(pages.start, pages.end, CHUNK):
            piece = before + window.memory.read_available(start, min(CHUNK, pages.end - start))
            origin = start - len(before)
            found.update(
                Context(saved.rip, saved.rsp)
                for saved in saved_contexts(piece)
                if not any(origin + saved.at in span for span in unused)
            )
            before = piece[-RSP_BEFORE_SEGMENTS:]
    return found


class Saved(NamedTuple):
    """What a signal frame will restore, and how far from the start of its memory it says so."""

    at: int
    rsp: int
    rip: int


def saved_contexts(memory: bytes) -> Iterator[Saved]:
    """Every signal frame in a piece of memory, of which the first byte lies at a multiple of 8."""
    at = -1
    while (at := memory.find(SEGMENTS, at + 1)) >= 0:
        if at % 8 == 0 and at >= RSP_BEFORE_SEGMENTS:
            rsp, rip = struct.unpack_from("<QQ", memory, at - RSP_BEFORE_SEGMENTS)
            yield Saved(at, rsp, rip)


def _mapping_of(maps: Sequence[Mapping], starts: Sequence[int], address: int) -> Mapping | None:
    at = bisect_right(starts, address) - 1
    return maps[at] if at >= 0 and address < maps[at].end else None
