"""The mappings of a process, from /proc/PID/maps."""

from __future__ import annotations

import contextlib
import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from sidestep import errors
from sidestep.errors import TargetError

LARGEST_PID = 1 << 22  # PID_MAX_LIMIT of <linux/threads.h>
_LINE = re.compile(
    rb"([0-9a-f]{1,16})-([0-9a-f]{1,16}) ([r-][w-][x-][sp]) ([0-9a-f]{1,16}) ([0-9a-f]+:[0-9a-f]+) (\d{1,20})"
    rb"(?: +(.*)| *)"
)


@dataclass(frozen=True, slots=True)
class Mapping:
    """One line of /proc/PID/maps. `path` may be a file, `[heap]`-like, or empty; bytes that are no UTF-8 are
    kept as surrogates, so that the path can be opened."""

    start: int
    end: int
    perms: str
    offset: int
    device: str
    inode: int
    path: str

    @property
    def deleted(self) -> bool:
        return self.path.endswith(" (deleted)")


def overlapping(mappings: Sequence[Mapping], start: int, end: int) -> Sequence[Mapping]:
    """Those that hold an address from `start` up to `end`. They are in the order of addresses."""
    first = bisect_right(mappings, start, key=attrgetter("end"))
    return mappings[first : max(first, bisect_left(mappings, end, key=attrgetter("start")))]


def read_maps(pid: int) -> list[Mapping]:
    """In the order of addresses. Raises TargetError PROCESS_GONE, also when it has no memory any more."""
    try:
        raw = read_raw_maps(pid)
    except (FileNotFoundError, ProcessLookupError) as error:
        raise TargetError(f"process {pid}", errors.PROCESS_GONE) from error
    except PermissionError as error:
        raise TargetError(f"process {pid}", errors.NO_PERMISSION) from error
    if not raw:
        raise TargetError(f"process {pid}", errors.PROCESS_GONE)
    return parse_maps(raw)


def read_raw_maps(pid: int) -> bytes:
    """As the kernel shows them; where the first thread has ended, at the others. Raises OSError."""
    with open(f"/proc/{pid}/maps", "rb", buffering=0) as file:
        raw = file.readall()
    if not raw:
        for tid in os.listdir(f"/proc/{pid}/task"):
            if int(tid) != pid:
                with contextlib.suppress(OSError):
                    raw = raw or Path(f"/proc/{pid}/task/{tid}/maps").read_bytes()
    return raw


def parse_maps(raw: bytes) -> list[Mapping]:
    """Lines that do not have the kernel's form are skipped (there are none; a path cannot hold a newline
    unescaped)."""
    mappings: list[Mapping] = []
    for line in raw.split(b"\n"):
        found = _LINE.fullmatch(line)
        if found is None:
            continue
        start, end, perms, offset, device, inode, path = found.groups(b"")
        mappings.append(
            Mapping(
                int(start, 16),
                int(end, 16),
                perms.decode(),
                int(offset, 16),
                device.decode(),
                int(inode),
                # The kernel writes a newline in a path as \012 and nothing else escaped.
                path.replace(b"\\012", b"\n").decode("utf-8", "surrogateescape"),
            )
        )
    return mappings
