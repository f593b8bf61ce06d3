"""What can be seen of a process from outside: mappings, code, descriptors, signals; and what changed."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

SIGNAL_FIELDS = ("SigBlk", "SigIgn", "SigCgt", "SigPnd", "ShdPnd")
PROCESS_FIELDS = ("TracerPid", "NoNewPrivs", "Seccomp", "CoreDumping")


@dataclass(frozen=True, slots=True, order=True)
class Area:
    """A mapping, or several of the same kind in a row: the kernel may split one or join two."""

    start: int
    end: int
    permissions: str
    offset: int
    device: str
    inode: int
    path: str

    @property
    def executable(self) -> bool:
        return "x" in self.permissions

    def joins(self, after: Area) -> bool:
        """Whether `after` goes on where this one ends."""
        alike = (self.permissions, self.device, self.inode, self.path) == (
            after.permissions,
            after.device,
            after.inode,
            after.path,
        )
        in_file = not self.inode or self.offset + self.end - self.start == after.offset
        return alike and self.end == after.start and in_file

    def __str__(self) -> str:
        return f"{self.start:x}-{self.end:x} {self.permissions} {self.offset:x} {self.inode} {self.path}"


@dataclass(frozen=True, slots=True)
class State:
    """One look at a process."""

    pid: int
    areas: tuple[Area, ...]
    code: dict[str, str]
    descriptors: dict[int, str]
    threads: dict[int, dict[str, str]]
    process: dict[str, str]


def living_thread(pid: int) -> int:
    """A thread at which /proc shows the memory: the first does not if it has ended before the others."""
    tids = sorted(int(task.name) for task in Path(f"/proc/{pid}/task").iterdir())
    return next((tid for tid in tids if Path(f"/proc/{tid}/maps").read_bytes()), pid)


def read_areas(pid: int) -> tuple[Area, ...]:
    """The mappings, neighbours of the same kind joined."""
    areas: list[Area] = []
    for line in Path(f"/proc/{living_thread(pid)}/maps").read_text().splitlines():
        bounds, permissions, offset, device, inode, *path = line.split(None, 5)
        start, end = (int(bound, 16) for bound in bounds.split("-"))
        area = Area(start, end, permissions, int(offset, 16), device, int(inode), path[0] if path else "")
        if areas and areas[-1].joins(area):
            first = areas.pop()
            area = replace(first, end=area.end)
        areas.append(area)
    return tuple(areas)


def read_code(pid: int, areas: tuple[Area, ...]) -> dict[str, str]:
    """A digest of the bytes of every executable mapping of a file."""
    code = {}
    with open(f"/proc/{living_thread(pid)}/mem", "rb", buffering=0) as memory:
        for area in areas:
            if area.executable and area.inode:
                digest = hashlib.sha256()
                memory.seek(area.start)
                left = area.end - area.start
                while left:
                    data = memory.read(min(left, 1 << 20))
                    assert data, f"{area} could not be read"
                    digest.update(data)
                    left -= len(data)
                code[str(area)] = digest.hexdigest()
    return code


def read_descriptors(pid: int) -> dict[int, str]:
    found = {}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found[int(entry.name)] = os.readlink(entry)
        except OSError:
            continue
    return found


def read_threads(pid: int) -> dict[int, dict[str, str]]:
    """The signal masks of each thread."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            status = dict(re.findall(r"^(\w+):\s*(.*)$", (task / "status").read_text(), re.M))
        except OSError:
            continue
        found[int(task.name)] = {name: status[name] for name in SIGNAL_FIELDS}
    return found


def read_state(pid: int) -> State:
    areas = read_areas(pid)
    status = dict(
        re.findall(r"^(\w+):\s*(.*)$", Path(f"/proc/{living_thread(pid)}/status").read_text(), re.M)
    )
    return State(
        pid,
        areas,
        read_code(pid, areas),
        read_descriptors(pid),
        read_threads(pid),
        {name: status[name] for name in PROCESS_FIELDS},
    )


def differences(before: State, after: State) -> list[str]:
    """Everything that changed. For a process that did nothing itself in between."""
    old, new = set(before.areas), set(after.areas)
    found = [f"mapping gone: {area}" for area in sorted(old - new)]
    found += [f"mapping added: {area}" for area in sorted(new - old)]
    found += _code_differences(before, after)
    found += _changes("descriptor", before.descriptors, after.descriptors)
    found += _changes("thread", before.threads, after.threads)
    found += _changes("process", before.process, after.process)
    return found


def remains(before: State, after: State, *, makes_code: bool = False) -> list[str]:
    """What a probing session may have left behind in a process that itself went on working in between.

    Such a process allocates, opens and starts threads of its own: only code, executable mappings, what bears
    our name and the tracer count. With `makes_code` it also maps code of its own.
    """
    found = _code_differences(before, after)
    known = {(area.start, area.path) for area in before.areas}
    for area in after.areas:
        new = area.executable and (area.start, area.path) not in known and not area.inode
        if "sidestep" in area.path or (new and not makes_code):
            found.append(f"mapping added: {area}")
    found += [f"descriptor added: {name}" for name in after.descriptors.values() if "sidestep" in name]
    found += _changes("process", before.process, after.process)
    return found


def mask_changes(before: State, after: State) -> list[str]:
    """Changes of what threads that were there both times block, ignore and handle."""
    fields = ("SigBlk", "SigIgn", "SigCgt")
    found = []
    for tid in before.threads.keys() & after.threads.keys():
        old, new = ({name: state.threads[tid][name] for name in fields} for state in (before, after))
        found += _changes(f"thread {tid}", old, new)
    return found


def _code_differences(before: State, after: State) -> list[str]:
    """Modules that are there both times, with other bytes."""
    return [
        f"code changed: {area}"
        for area, digest in before.code.items()
        if area in after.code and after.code[area] != digest
    ]


def _changes(what: str, before: dict, after: dict) -> list[str]:
    keys = sorted({*before, *after})
    return [
        f"{what} {key}: {before.get(key)} became {after.get(key)}"
        for key in keys
        if before.get(key) != after.get(key)
    ]
