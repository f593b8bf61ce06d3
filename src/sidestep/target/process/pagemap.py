"""Which pages of a process hold something of its own, from /proc/PID/pagemap (proc_pid_pagemap(5))."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

from sidestep.address import PAGE, Range
from sidestep.maps import Mapping

ENTRY = 8
CHUNK = 1 << 20  # bytes of the pagemap that are read at once: those of 512 MiB
PRESENT, SWAPPED, OF_FILE = 1 << 7, 1 << 6, 1 << 5  # in the last byte of an entry
OWN = bytes(bool(byte & (PRESENT | SWAPPED)) and not byte & OF_FILE for byte in range(256))
RUN = re.compile(rb"\x01+")


def written_pages(pid: int, mappings: Iterable[Mapping]) -> Iterator[Range]:
    """Runs of pages that are not a file's and not untouched: present or swapped out. Raises OSError."""
    with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as file:
        for mapping in mappings:
            first, last = mapping.start // PAGE * ENTRY, mapping.end // PAGE * ENTRY
            for offset in range(first, last, CHUNK):
                entries = os.pread(file.fileno(), min(CHUNK, last - offset), offset)
                base = offset // ENTRY
                for run in RUN.finditer(entries[ENTRY - 1 :: ENTRY].translate(OWN)):
                    yield Range((base + run.start()) * PAGE, (base + run.end()) * PAGE)
