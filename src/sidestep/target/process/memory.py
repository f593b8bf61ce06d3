"""The target's memory through /proc/PID/mem."""

from __future__ import annotations

import errno
import os
import struct

from sidestep import errors
from sidestep.errors import TargetError


class ProcessMemory:
    """Reads and writes the memory of a process; one open file descriptor until `close()`.

    The descriptor belongs to the address space at the time it was opened: after an exec in the target it
    reads as end of file, so that nothing is ever written into a program that was not looked at.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        try:
            self._file = os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC)
        except PermissionError as error:
            raise TargetError(f"process {pid}", errors.NO_PERMISSION) from error
        except (FileNotFoundError, ProcessLookupError) as error:
            raise TargetError(f"process {pid}", errors.NO_SUCH_PROCESS) from error

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    @property
    def is_live(self) -> bool:
        """Whether the address space still exists: neither an exit nor an exec has ended it."""
        try:
            return bool(os.pread(self._file, 1, 0))
        except OSError:
            return True  # nothing is mapped there, but something is elsewhere

    def read(self, address: int, size: int) -> bytes:
        """`size` bytes; raises OSError EFAULT when any of them is not mapped, TargetError when the process
        is gone."""
        if address < 0 or address + size > 1 << 63:
            raise OSError(errno.EFAULT, f"no memory at {address:#x} in process {self.pid}")
        parts: list[bytes] = []
        while size:
            try:
                part = os.pread(self._file, size, address)
            except OSError as error:
                if error.errno in (errno.EIO, errno.EFAULT, errno.EOVERFLOW, errno.EINVAL):
                    raise OSError(errno.EFAULT, f"no memory at {address:#x} in process {self.pid}") from error
                raise
            if not part:
                raise TargetError(f"process {self.pid}", errors.PROCESS_GONE)
            parts.append(part)
            address += len(part)
            size -= len(part)
        return b"".join(parts)

    def read_available(self, address: int, size: int) -> bytes:
        """As many of `size` bytes as are mapped from `address` on; empty when the first is not."""
        if address < 0 or address + size > 1 << 63:
            return b""
        try:
            return os.pread(self._file, size, address)
        except OSError:
            return b""

    def write(self, address: int, data: bytes) -> None:
        """Write through page protections (as a debugger's poke). One page's bytes go in one step."""
        written = os.pwrite(self._file, data, address)
        if written != len(data) and not self.is_live:
            raise TargetError(f"process {self.pid}", errors.PROCESS_GONE)
        if written != len(data):
            raise OSError(errno.EFAULT, f"no memory to write at {address + written:#x} in process {self.pid}")

    def read_u64(self, address: int) -> int:
        value: int = struct.unpack("<Q", self.read(address, 8))[0]
        return value

    def read_u32(self, address: int) -> int:
        value: int = struct.unpack("<I", self.read(address, 4))[0]
        return value

    def read_cstring(self, address: int, limit: int = 4096) -> bytes:
        """The bytes up to the first NUL, at most `limit`."""
        data = b""
        while len(data) < limit:
            here = address + len(data)
            part = self.read_available(here, min(4096 - here % 4096, limit - len(data)))
            if not part:
                raise OSError(errno.EFAULT, f"no memory at {here:#x} in process {self.pid}")
            data += part
            if (end := data.find(b"\0")) >= 0:
                return data[:end]
        return data[:limit]
