"""Sessions found in a process: whose they are, what they hold, and how to take out those of a dead
controller.

All is read from the target's memory and may have been overwritten by the program: a record is believed only
as far as the text in memory holds exactly the jump that it describes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sidestep import errors
from sidestep.address import Range
from sidestep.errors import TargetError
from sidestep.events import layout
from sidestep.maps import Mapping, read_maps
from sidestep.target.process import procfs
from sidestep.target.process.areas import MEMFD_PATH, processes_that_map, unmap
from sidestep.target.process.memory import ProcessMemory
from sidestep.target.process.poke import evacuate, in_flight
from sidestep.target.process.process import Window, attach

PATIENCE = 5.0  # seconds for threads to leave code of ours


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
            restored, done = _clean_one(member, session.inode)
            complete &= done
            lines.append(
                f"process {member}: {restored} probepoints restored, "
                + (
                    "nothing of ours is left"
                    if done
                    else "a thread is still in our code: its memory stays, try again"
                )
            )
    return Cleaned("\n".join(lines), complete)


def _clean_one(pid: int, inode: int) -> tuple[int, bool]:
    process = attach(pid, allow_seccomp=True)
    try:
        deadline = time.monotonic() + PATIENCE
        restored = 0
        while True:
            more, done = process.in_window(lambda window: _clean_in(window, inode))
            restored += more
            if done or time.monotonic() > deadline:
                return restored, done
            time.sleep(0.002)
    finally:
        process.close()


def _clean_in(window: Window, inode: int) -> tuple[int, bool]:
    mine = [session for session in sessions(window.process.pid, window.maps) if session.inode == inode]
    if not mine:
        return 0, True
    session = mine[0]
    restored = 0
    for record in session.records:
        if (
            record.patched
            and window.memory.read_available(record.site, len(record.patched)) == record.patched
        ):
            window.memory.write(record.site, record.original)
            restored += 1
    evacuate(window, {copy: original for record in session.records for original, copy in record.moves})
    if in_flight(window, session.arenas):
        return restored, False
    spans = [*session.arenas, *(Range(m.start, m.end) for m in session.mappings)]
    unmap(window, spans)
    return restored, True
