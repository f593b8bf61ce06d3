"""Sessions found in a process: whose they are, what they hold, and how to take out those of a dead
controller.

All is read from the target's memory and may have been overwritten by the program. A record is believed only
as far as it describes a jump into a code arena and the text in memory holds exactly that jump; an arena only
if what is mapped there looks like one; and no arena goes while a jump leads into it.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sidestep import errors
from sidestep.address import PAGE, Range
from sidestep.errors import TargetError
from sidestep.events import layout
from sidestep.events.layout import JUMP_SIZE
from sidestep.maps import Mapping, read_maps
from sidestep.target.process import fronts, procfs
from sidestep.target.process.areas import OWNER, is_ours, processes_that_map, unmap
from sidestep.target.process.memory import ProcessMemory
from sidestep.target.process.pagemap import written_pages
from sidestep.target.process.poke import evacuate, in_flight
from sidestep.target.process.process import Window, attach_child

PATIENCE = 5.0  # seconds for threads to leave code of ours
LENT_PATIENCE = 0.5  # seconds for threads that a dead controller had borrowed to go on
RECORDS_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Session:
    """What a process holds of one session."""

    pid: int
    path: str  # of its memory, as /proc shows it
    inode: int
    header: layout.Header
    records: tuple[layout.ProbeRecord, ...]
    mappings: tuple[Mapping, ...]
    descriptors: tuple[int, ...] = ()  # only if the controller was killed before it had closed them

    @property
    def controller_alive(self) -> bool:
        try:
            status = procfs.read_status(self.header.controller_pid)
        except TargetError:
            return False
        return status.start_time == self.header.controller_start and status.state not in "ZX"

    @property
    def arenas(self) -> list[Range]:
        return [Range(arena.start, arena.start + arena.size) for arena in self.header.arenas]


def sessions(pid: int, maps: Iterable[Mapping] | None = None) -> list[Session]:
    """The sessions whose shared memory the process has mapped; those with a damaged header are left out.

    Without `maps` descriptors that a killed controller left open are looked for, too.
    """
    mine: dict[str, list[Mapping]] = {}
    for mapping in read_maps(pid) if maps is None else maps:
        if is_ours(mapping.path):
            mine.setdefault(mapping.path, []).append(mapping)
    descriptors = _descriptors(pid) if maps is None else {}
    found: list[Session] = []
    memory = ProcessMemory(pid)
    try:
        # The rings are another memfd of the same session, and so of the same name.
        for path in mine.keys() | descriptors.keys():
            mappings = mine.get(path, [])
            first = next((mapping for mapping in mappings if mapping.offset == 0), None)
            header = _read_header(memory, path, first)
            if header is not None:
                inode = first.inode if first else mappings[0].inode if mappings else 0
                records = tuple(_records(memory, first.start)) if first else ()
                numbers = tuple(descriptors.get(path, ()))
                found.append(Session(pid, path, inode, header, records, tuple(mappings), numbers))
    finally:
        memory.close()
    return found


def _read_header(memory: ProcessMemory, path: str, first: Mapping | None) -> layout.Header | None:
    """The session's header. While it is not written yet nothing leads into memory of ours, and the name of
    that memory says who makes it."""
    size = layout.HEADER_SIZE
    raw = bytes(size) if first is None else memory.read_available(first.start, size)
    try:
        return layout.Header.read(raw)
    except layout.LayoutError:
        owner = OWNER.match(path)
        if owner is None or any(raw):
            return None
        return layout.Header(int(owner[1]), int(owner[2]), target_pid=memory.pid, data_address=0)


def _descriptors(pid: int) -> dict[str, list[int]]:
    """Open descriptors of memory of ours, by its name."""
    found: dict[str, list[int]] = {}
    for entry in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            path = os.readlink(f"/proc/{pid}/fd/{entry}")
            if is_ours(path):
                found.setdefault(path, []).append(int(entry))
    return found


def _records(memory: ProcessMemory, base: int) -> Iterator[layout.ProbeRecord]:
    """The records of the table, as far as the program has not unmapped it."""
    header = memory.read_available(base, layout.HEADER_SIZE).ljust(layout.HEADER_SIZE, b"\0")
    size = layout.PROBE_RECORD_SIZE
    count = layout.record_count(header)
    for first in range(0, count, RECORDS_AT_ONCE):
        here = min(RECORDS_AT_ONCE, count - first)
        table = memory.read_available(base + layout.probe_offset(first), here * size).ljust(
            here * size, b"\0"
        )
        for index in range(here):
            record = layout.ProbeRecord.parse(table[index * size : (index + 1) * size])
            if record is not None:
                yield record


def await_lent_threads(pid: int) -> None:
    """Wait until no thread runs that a controller may have borrowed and then died: it goes on by itself, but
    what its system call makes is there only when it has had a CPU. (A borrowed thread blocks all signals; in
    a program whose own threads do that and never sleep, this takes `LENT_PATIENCE`.)"""
    deadline = time.monotonic() + LENT_PATIENCE
    while time.monotonic() < deadline and any(
        procfs.blocks_everything(pid, tid) and procfs.thread_state(pid, tid) == "R"
        for tid in procfs.threads(pid)
    ):
        time.sleep(0.001)


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What `clean` did."""

    text: str
    complete: bool


def clean(pid: int) -> Cleaned:
    """Take out everything that sessions of dead controllers left in a process and in children that share it.

    Raises TargetError OTHER_SESSION when a controller is alive.
    """
    procfs.check_attachable(pid)
    await_lent_threads(pid)
    found = sessions(pid)
    if not found:
        if any(is_ours(mapping.path) for mapping in read_maps(pid)):
            damaged = "the program has overwritten what a session left, and it stays there"
            return Cleaned(f"process {pid}: {damaged}", False)
        return Cleaned(f"process {pid}: nothing to clean", True)
    lines: list[str] = []
    complete = True
    for session in found:
        if session.controller_alive:
            raise TargetError(
                f"process {pid}", errors.OTHER_SESSION, f"controller {session.header.controller_pid}"
            )
        for member in _members(session):
            try:
                restored, left = _clean_one(member, session)
            except TargetError as error:
                if member != pid and error.is_gone:
                    continue
                raise
            complete &= left is None
            lines.append(
                f"process {member}: {restored} probepoints restored, "
                + ("nothing of ours is left" if left is None else f"{left}: our memory stays there")
            )
    return Cleaned("\n".join(lines), complete)


def _members(session: Session) -> list[int]:
    """The processes that have the session's memory; not children of vfork, which run in their parent's."""
    others = [pid for pid in processes_that_map(session.inode) if pid != session.pid]
    members = [session.pid]
    for pid in others:
        if not any(procfs.share_memory(member, pid) for member in members):
            members.append(pid)
    return members


def _clean_one(pid: int, session: Session) -> tuple[int, str | None]:
    """How many jumps were taken out, and what keeps our memory there, if anything."""
    process = attach_child(pid)
    process.hides_contexts = session.header.hides_contexts
    try:
        deadline = time.monotonic() + PATIENCE
        restored = 0
        while True:
            done = process.in_window(lambda window: _clean_in(window, session))
            restored += done.restored
            if done.left is None or done.final or time.monotonic() > deadline:
                return restored, done.left
            time.sleep(0.002)
    finally:
        process.close()


class _Attempt(NamedTuple):
    """Jumps that were taken out, and what keeps our memory there, if anything; `final`: for ever."""

    restored: int
    left: str | None = None
    final: bool = False


def _clean_in(window: Window, known: Session) -> _Attempt:
    pid = window.process.pid
    mine = [session for session in sessions(pid, window.maps) if session.path == known.path]
    # Descriptors were seen in the process that is cleaned; they may be something else by now.
    numbers = known.descriptors if pid == known.pid else ()
    still_open = [number for number in numbers if _leads_to(pid, number, known.path)]
    if not mine:
        unmap(window, [], still_open)
        return _Attempt(0)
    session = mine[0]
    # An arena is in the header before it is made.
    arenas = [arena for arena in session.arenas if any(arena.overlaps(_span(m)) for m in window.maps)]
    for arena in arenas:
        if not _looks_like_arena(window, arena):
            return _Attempt(0, f"the program has overwritten where our code is ({arena} is not ours)")
    last = [record for record in session.records if record.flags & layout.FLAG_LAST]
    first = [record for record in session.records if not record.flags & layout.FLAG_LAST]
    restored, problem = _restore(window, first, arenas)
    if problem:
        return _Attempt(restored, problem)
    believed = [record for record in first if is_into(record, arenas)]
    evacuate(window, {copy: original for record in believed for original, copy in record.moves})
    signal_layer = fronts.layout_at(session.header.signal_layer)
    has_fronts = any(signal_layer.code in arena for arena in arenas)
    if has_fronts:
        fronts.evacuate(window, signal_layer, arenas)
    if in_flight(window, arenas):
        return _Attempt(restored, "a thread is still in our code")
    try:
        if has_fronts:
            fronts.take_out(window, signal_layer)
    except TargetError as error:
        if error.reason is not errors.MEMORY_STAYS:
            raise
        _restore(window, last, arenas)
        return _Attempt(restored, f"its filters of system calls forbid more ({error.detail})", final=True)
    _, problem = _restore(window, last, arenas)
    if problem:
        return _Attempt(restored, problem)
    for site in _jumps_into(window, arenas):
        return _Attempt(restored, f"a jump at {site:#x} leads there that is not in our table any more")
    try:
        unmap(window, [*arenas, *map(_span, session.mappings)], still_open)
    except TargetError as error:
        if error.reason is errors.NO_STACK_TO_LEAVE:
            return _Attempt(restored, "every thread runs on a coroutine's stack now")
        if error.reason is not errors.MEMORY_STAYS:
            raise
        return _Attempt(restored, f"its filters of system calls forbid more ({error.detail})", final=True)
    return _Attempt(restored)


def _restore(
    window: Window, records: Iterable[layout.ProbeRecord], arenas: Sequence[Range]
) -> tuple[int, str]:
    """How many of these probepoints were restored; what keeps a jump there, if anything."""
    restored = 0
    for record in records:
        if window.memory.read_available(record.site, JUMP_SIZE) == record.patched:
            if not is_into(record, arenas):
                return restored, f"the program has overwritten where the jump at {record.site:#x} leads to"
            window.memory.write(record.site, record.original)
            restored += not record.flags & layout.FLAG_HOOK
    return restored, ""


def _span(mapping: Mapping) -> Range:
    return Range(mapping.start, mapping.end)


def _leads_to(pid: int, descriptor: int, path: str) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/fd/{descriptor}") == path
    except OSError:
        return False


def _looks_like_arena(window: Window, arena: Range) -> bool:
    """Only private memory without a name: code, and at the end perhaps a process page."""
    there = [m for m in window.maps if m.start < arena.end and arena.start < m.end]
    data = arena.end - layout.PROCESS_PAGE_SIZE
    return bool(there) and all(
        not m.path and (m.perms == "r-xp" or (m.perms == "rw-p" and m.start >= data)) for m in there
    )


def is_into(record: layout.ProbeRecord, arenas: Iterable[Range]) -> bool:
    """Whether it describes a jump into one of the arenas."""
    if len(record.original) != JUMP_SIZE or record.patched[:1] != b"\xe9":
        return False
    target = record.site + JUMP_SIZE + int.from_bytes(record.patched[1:], "little", signed=True)
    return target == record.buffer and any(target in arena for arena in arenas)


def _jumps_into(window: Window, arenas: Sequence[Range]) -> Iterator[int]:
    """Where there is a jump into one of the arenas, in the pages of text that were written to."""
    for page in _written_text(window):
        code = window.memory.read_available(page - JUMP_SIZE + 1, PAGE + 2 * (JUMP_SIZE - 1))
        at = -1
        while (at := code.find(b"\xe9", at + 1)) >= 0:
            if at + JUMP_SIZE <= len(code):
                site = page - JUMP_SIZE + 1 + at
                target = site + JUMP_SIZE + struct.unpack_from("<i", code, at + 1)[0]
                if any(target in arena for arena in arenas):
                    yield site


def _written_text(window: Window) -> Iterator[int]:
    """The pages of private file mappings with code that are copies of their own (proc_pid_pagemap(5))."""
    text = [m for m in window.maps if m.inode and "x" in m.perms and "p" in m.perms]
    for written in written_pages(window.living_thread, text):
        yield from range(written.start, written.end, PAGE)
