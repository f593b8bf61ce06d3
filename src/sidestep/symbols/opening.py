"""Opening files that a target names: whatever stands at a path, nothing hangs and nothing is set off.

What is no regular file (a FIFO, a device) is never opened, only looked at. Inside another root, symbolic
links lead where they lead for the target.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat

_SYS_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS, _RESOLVE_IN_ROOT = 2, 16  # <linux/openat2.h>
_LOOK = os.O_PATH | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_libc = ctypes.CDLL(None, use_errno=True)


class _OpenHow(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


def open_regular(path: str, root: str | None = None) -> int:
    """A descriptor for reading. `root` is a folder that counts as the root of the path.

    Raises OSError (EINVAL for what is no regular file), and ValueError for a path with a zero byte in it.
    """
    looked = os.open(path, _LOOK) if root is None else _look_inside(root, path)
    try:
        if not stat.S_ISREG(os.fstat(looked).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return os.open(f"/proc/self/fd/{looked}", _READ)
    finally:
        os.close(looked)


def _look_inside(root: str, path: str) -> int:
    folder = os.open(root, _LOOK | os.O_DIRECTORY)
    try:
        how = _OpenHow(_LOOK, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
        raw = os.fsencode(path)
        if b"\0" in raw:
            raise ValueError("a path holds a zero byte")
        opened: int = _libc.syscall(_SYS_OPENAT2, folder, raw, ctypes.byref(how), ctypes.sizeof(how))
    finally:
        os.close(folder)
    if opened < 0:
        number = ctypes.get_errno()
        if number in (errno.ENOSYS, errno.EPERM):  # before Linux 5.6, or filtered in a container
            return os.open(root + path, _LOOK)
        raise OSError(number, os.strerror(number), path)
    return opened
