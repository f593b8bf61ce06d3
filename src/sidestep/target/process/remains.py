"""Sessions found in a process: whose they are, what they hold, and how to take out those of a dead
controller.

All is read from the target's memory and may have been overwritten by the program. A record is believed only
as far as it describes a jump into a code arena and the text in memory holds exactly that jump; an arena only
if what is mapped there looks like one; and no arena goes while a jump leads into it.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sidestep import errors
from sidestep.address import Range
from sidestep.errors import TargetError
from sidestep.events import layout
from sidestep.maps import Mapping, read_maps
from sidestep.target.base import JUMP_SIZE, jump
from sidestep.target.process import procfs
from sidestep.target.process.areas import MEMFD_PATH, PAGE, processes_that_map, unmap
from sidestep.target.process.memory import ProcessMemory
from sidestep.target.process.poke import evacuate, in_flight
from sidestep.target.process.process import Window, attach

PATIENCE = 5.0  # seconds for threads to leave code of ours
PRESENT, SWAPPED, OF_FILE = 1 << 63, 1 << 62, 1 << 61  # bits of an entry of /proc/PID/pagemap


@dataclass(frozen=True, slots=True)
class Session:
    """What a process holds of one session."""

    pid: int
    inode: int
    header: layout.Header
    records: tuple[layout.ProbeRecord, ...]
    mappings: tuple[Mapping, ...]

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
    """The sessions whose shared memory the process has mapped; those with a damaged header are left out."""
    mine = [m for m in (read_maps(pid) if maps is None else maps) if m.path.startswith(MEMFD_PATH)]
    found: list[Session] = []
    memory = ProcessMemory(pid)
    try:
        for first in mine:
            if first.offset != 0:
                continue
            try:
                header = layout.Header.read(memory.read(first.start, layout.HEADER_SIZE))
            except layout.LayoutError:
                continue
            records = tuple(_records(memory, first.start))
            # The rings are another memfd of the same session: where they are is in the header.
            size = header.ring_count * layout.ring_stride(header.ring_size)
            rings = Range(header.rings_address, header.rings_address + size)
            related = tuple(m for m in mine if m.inode == first.inode or m.start in rings)
            found.append(Session(pid, first.inode, header, records, related))
    finally:
        memory.close()
    return found


def _records(memory: ProcessMemory, base: int) -> Iterator[layout.ProbeRecord]:
    """Read the table up to the first place that was never used."""
    chunk = 256
    for first in range(0, layout.PROBE_CAPACITY, chunk):
        table = memory.read(base + layout.probe_offset(first), chunk * layout.PROBE_RECORD_SIZE)
        for index in range(chunk):
            raw = table[index * layout.PROBE_RECORD_SIZE : (index + 1) * layout.PROBE_RECORD_SIZE]
            if not any(raw):
                return
            record = layout.ProbeRecord.parse(raw)
            if record is not None:
                yield record


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What `clean` did."""

    text: str
    complete: bool


def clean(pid: int, *, even_if_alive: bool = False) -> Cleaned:
    """Take out everything that sessions of dead controllers left in a process and in children that share it.

    Raises TargetError OTHER_SESSION when a controller is alive.
    """
    procfs.check_attachable(pid, allow_seccomp=True)
    found = sessions(pid)
    if not found:
        return Cleaned(f"process {pid}: nothing to clean", True)
    lines: list[str] = []
    complete = True
    for session in found:
        if session.controller_alive and not even_if_alive:
            raise TargetError(
                f"process {pid}", errors.OTHER_SESSION, f"controller {session.header.controller_pid}"
            )
        for member in processes_that_map(session.inode):
            restored, left = _clean_one(member, session.inode)
            complete &= left is None
            lines.append(
                f"process {member}: {restored} probepoints restored, "
                + ("nothing of ours is left" if left is None else f"{left}: our memory stays there")
            )
    return Cleaned("\n".join(lines), complete)


def _clean_one(pid: int, inode: int) -> tuple[int, str | None]:
    """How many jumps were taken out, and what keeps our memory there, if anything."""
    process = attach(pid, allow_seccomp=True)
    try:
        deadline = time.monotonic() + PATIENCE
        restored = 0
        while True:
            more, left = process.in_window(lambda window: _clean_in(window, inode))
            restored += more
            if left is None or time.monotonic() > deadline:
                return restored, left
            time.sleep(0.002)
    finally:
        process.close()


def _clean_in(window: Window, inode: int) -> tuple[int, str | None]:
    mine = [session for session in sessions(window.process.pid, window.maps) if session.inode == inode]
    if not mine:
        return 0, None
    session = mine[0]
    arenas = session.arenas
    for arena in arenas:
        if not _looks_like_arena(window, arena):
            return 0, f"the program has overwritten where our code is ({arena} is not ours)"
    restored = 0
    for record in session.records:
        if window.memory.read_available(record.site, JUMP_SIZE) == record.patched:
            if not _is_into(record, arenas):
                return restored, f"the program has overwritten where the jump at {record.site:#x} leads to"
            window.memory.write(record.site, record.original)
            restored += 1
    believed = [record for record in session.records if _is_into(record, arenas)]
    evacuate(window, {copy: original for record in believed for original, copy in record.moves})
    if in_flight(window, arenas):
        return restored, "a thread is still in our code"
    for site in _jumps_into(window, arenas):
        return restored, f"a jump at {site:#x} leads there that is not in our table any more"
    unmap(window, [*arenas, *(Range(m.start, m.end) for m in session.mappings)])
    return restored, None


def _looks_like_arena(window: Window, arena: Range) -> bool:
    """Only private memory without a name: code, and at the end perhaps a process page."""
    there = [m for m in window.maps if m.start < arena.end and arena.start < m.end]
    data = arena.end - layout.PROCESS_PAGE_SIZE
    return bool(there) and all(
        not m.path and (m.perms == "r-xp" or (m.perms == "rw-p" and m.start >= data)) for m in there
    )


def _is_into(record: layout.ProbeRecord, arenas: Iterable[Range]) -> bool:
    """Whether it describes a jump into one of the arenas."""
    return (
        len(record.original) == JUMP_SIZE
        and any(record.buffer in arena for arena in arenas)
        and abs(record.buffer - record.site) < 1 << 31
        and record.patched == jump(record.site, record.buffer)
    )


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
    with open(f"/proc/{window.process.pid}/pagemap", "rb", buffering=0) as file:
        for mapping in window.maps:
            if mapping.inode and "x" in mapping.perms and "p" in mapping.perms:
                size = (mapping.end - mapping.start) // PAGE * 8
                entries = os.pread(file.fileno(), size, mapping.start // PAGE * 8)
                for number, (entry,) in enumerate(struct.iter_unpack("<Q", entries)):
                    if entry & (PRESENT | SWAPPED) and not entry & OF_FILE:
                        yield mapping.start + number * PAGE
