"""Where the bytes of an ELF image come from: a file, a string of bytes, or the memory of a process."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple, Protocol

from sidestep import errors
from sidestep.errors import SidestepError, TargetError
from sidestep.symbols.opening import open_regular

Reader = Callable[[int, int], bytes]
"""Reads the target's memory: (address, size) to bytes. May raise OSError or SidestepError, or return less."""

LARGEST_READ = 1 << 28
"""No table that is believed is larger than this many bytes."""


class Segment(NamedTuple):
    """One program header. Addresses are the file's own (without the load bias)."""

    type: int
    flags: int
    offset: int
    address: int
    file_size: int
    memory_size: int


class Content(Protocol):
    """The bytes of an image by file offset."""

    def read(self, offset: int, size: int) -> bytes:
        """At most `size` bytes; fewer at the end or where nothing can be read. Never raises."""
        ...


class FileContent:
    """A regular file. It is read, never mapped: a file that shrinks must not raise SIGBUS. With a `root`, the
    path is one inside of it, see `open_regular`.

    Its descriptor stays open as long as it is one of the last that were read; it is opened again when it is
    needed, and reads as empty if the path leads to another file by then.
    """

    _open_files: ClassVar[OrderedDict[int, int]] = OrderedDict()
    _most_open = 128
    # Reentrant: the garbage collector may end another file while one is read.
    _lock = threading.RLock()

    def __init__(self, path: str, root: str | None = None) -> None:
        self._path, self._root = path, root
        try:
            file = open_regular(path, root)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else None
            raise TargetError(path, errors.ELF_MALFORMED, reason or "its name cannot be opened") from error
        status = os.fstat(file)
        self.device, self.inode, self.size = status.st_dev, status.st_ino, status.st_size
        with self._lock:
            self._keep_open(file)

    def __del__(self) -> None:
        with self._lock:
            file = self._open_files.pop(id(self), -1)
            if file >= 0:
                os.close(file)

    def _keep_open(self, file: int) -> None:
        """Needs the lock."""
        while len(self._open_files) >= self._most_open:
            os.close(self._open_files.popitem(last=False)[1])
        self._open_files[id(self)] = file

    def _file(self) -> int:
        """The open descriptor. Needs the lock, until it was used."""
        file = self._open_files.get(id(self), -1)
        if file >= 0:
            self._open_files.move_to_end(id(self))
            return file
        file = open_regular(self._path, self._root)
        status = os.fstat(file)
        if (status.st_dev, status.st_ino) != (self.device, self.inode):
            os.close(file)
            raise FileNotFoundError(self._path)
        self._keep_open(file)
        return file

    def read(self, offset: int, size: int) -> bytes:
        size = min(size, self.size - offset, LARGEST_READ)
        if offset < 0 or size <= 0:
            return b""
        try:
            with self._lock:
                file = self._file()
                data = os.pread(file, size, offset)
                while len(data) < size:
                    more = os.pread(file, size - len(data), offset + len(data))
                    if not more:
                        break
                    data += more
        except OSError:
            return b""
        return data


class BytesContent:
    """An image that is in memory here (the vdso, a test)."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, offset: int, size: int) -> bytes:
        if offset < 0 or size <= 0:
            return b""
        return self._data[offset : offset + size]


class MemoryContent:
    """An image that exists in the target's memory only; file offsets are found through its segments."""

    def __init__(self, read: Reader, base: int) -> None:
        self._read = read
        self._base = base
        self.bias = base
        self.loads: Sequence[Segment] = ()

    def read(self, offset: int, size: int) -> bytes:
        if offset < 0 or size <= 0:
            return b""
        for load in self.loads:
            if load.offset <= offset < load.offset + load.file_size:
                size = min(size, load.offset + load.file_size - offset)
                return self.read_address(self.bias + load.address + offset - load.offset, size)
        return b"" if self.loads else self.read_address(self._base + offset, min(size, 4096 - offset))

    def read_address(self, address: int, size: int) -> bytes:
        return read_memory(self._read, address, min(size, LARGEST_READ))


def read_memory(read: Reader, address: int, size: int) -> bytes:
    """What `read` gives, or nothing where it fails."""
    if not 0 <= address < 1 << 63 or size <= 0:
        return b""
    try:
        return read(address, size)
    except (OSError, SidestepError, OverflowError, ValueError):
        return b""
