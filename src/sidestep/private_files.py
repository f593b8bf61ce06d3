"""Files that are kept from one session to the next in the user's cache directory.

What lies there is trusted for no more than its name says: it must belong to this user, nobody else may be
able to write it. Without a usable cache everything works as well, only slower.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

_LARGEST_ENTRY = 1 << 28
_MOST_ENTRIES = 64


def directory(kind: str) -> Path | None:
    """Where files of a kind are kept; None where there is no such place."""
    root = os.environ.get("XDG_CACHE_HOME") or ""
    if not os.path.isabs(root):
        home = os.environ.get("HOME") or ""
        if not os.path.isabs(home):
            return None
        root = os.path.join(home, ".cache")
    return Path(root) / "sidestep" / kind


def load(kind: str, name: str) -> bytes | None:
    """A kept file's bytes; None if there is none that can be trusted."""
    where = directory(kind)
    return None if where is None or not os.path.isdir(where) else _read_private(where / name)


def store(kind: str, name: str, data: bytes) -> None:
    """Keep a file; silently does nothing where that is not possible. The oldest of the kind make room."""
    where = directory(kind)
    if where is None:
        return
    try:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        _drop_oldest(where)
        # A name of its own for each writer; the entry appears complete or not at all.
        temporary = where / f".{name}.{os.getpid()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        with open(os.open(temporary, flags, 0o600), "wb") as file:
            file.write(data)
        os.replace(temporary, where / name)
    except OSError:
        return


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
