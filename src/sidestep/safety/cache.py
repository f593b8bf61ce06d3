"""Reference tables of large files, kept from one session to the next in the user's cache directory.

A file is known by a hash of its code, so that a table can never be applied to other code. What lies in the
cache is not trusted for more than that: it must belong to this user, nobody else may be able to write it,
and its form is checked. Without a usable cache everything works as well, only slower.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import zlib
from array import array
from collections.abc import Sequence
from pathlib import Path

from sidestep.arch.x86_64.references import CodeBytes, ReferenceTable

# Smaller files are searched or tabulated faster than the disk is worth.
_SMALLEST = 1 << 20
_LARGEST_ENTRY = 1 << 28
_MOST_ENTRIES = 64
_MAGIC = b"SDSTREF1"
_HEADER = struct.Struct("<8s32sQQI4x")


def directory() -> Path | None:
    """Where tables are kept; None where there is no such place."""
    root = os.environ.get("XDG_CACHE_HOME") or ""
    if not os.path.isabs(root):
        home = os.environ.get("HOME") or ""
        if not os.path.isabs(home):
            return None
        root = os.path.join(home, ".cache")
    return Path(root) / "sidestep" / "references"


def load(code: Sequence[CodeBytes]) -> ReferenceTable | None:
    """The table of exactly this code, if it was stored before."""
    where = directory()
    if where is None or not os.path.isdir(where) or sum(len(each.content) for each in code) < _SMALLEST:
        return None
    digest = _digest(code)
    raw = _read_private(where / digest.hex())
    if raw is None or len(raw) < _HEADER.size:
        return None
    magic, stored, base, count, checksum = _HEADER.unpack_from(raw)
    body = raw[_HEADER.size :]
    lowest = min(each.start for each in code)
    if (
        (magic, stored, base) != (_MAGIC, digest, lowest)
        or len(body) != 8 * count
        or zlib.crc32(body) != checksum
    ):
        return None
    return ReferenceTable(base, array("Q", body))


def store(code: Sequence[CodeBytes], table: ReferenceTable) -> None:
    """Keep a table; silently does nothing where that is not possible."""
    where = directory()
    if where is None or sum(len(each.content) for each in code) < _SMALLEST:
        return
    digest = _digest(code)
    body = table.packed.tobytes()
    header = _HEADER.pack(_MAGIC, digest, table.base, len(table.packed), zlib.crc32(body))
    try:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        _drop_oldest(where)
        # A name of its own for each writer; the entry appears complete or not at all.
        temporary = where / f".{digest.hex()}.{os.getpid()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        with open(os.open(temporary, flags, 0o600), "wb") as file:
            file.write(header)
            file.write(body)
        os.replace(temporary, where / digest.hex())
    except OSError:
        return


def _digest(code: Sequence[CodeBytes]) -> bytes:
    """Of the code and where it lies."""
    digest = hashlib.sha256()
    for start, content in code:
        digest.update(struct.pack("<QQ", start, len(content)))
        digest.update(content)
    return digest.digest()


def _read_private(path: Path) -> bytes | None:
    """A regular file of this user that nobody else can write."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            return None
        if status.st_size > _LARGEST_ENTRY:
            return None
        try:
            return file.read(_LARGEST_ENTRY)
        except OSError:
            return None


def _drop_oldest(where: Path) -> None:
    entries = sorted(where.iterdir(), key=lambda entry: entry.lstat().st_mtime)
    for entry in entries[: max(len(entries) - _MOST_ENTRIES + 1, 0)]:
        entry.unlink(missing_ok=True)
