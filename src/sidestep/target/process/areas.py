"""Memory of ours in the target: the shared data area, the rings, and code arenas near the modules.

No page is writable and executable. Code arenas are filled through /proc/PID/mem while nothing leads into
them. Each lies within reach of a 32-bit displacement from the module whose probes it serves, far from where
the heap, stacks and the next mappings grow.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import mmap
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sidestep import errors
from sidestep.address import PAGE, Range
from sidestep.errors import TargetError
from sidestep.events import layout
from sidestep.maps import Mapping, parse_maps, read_raw_maps
from sidestep.target.process import procfs
from sidestep.target.process.calls import (
    ARENA_FLAGS,
    LEAVING,
    MADV_DONTDUMP,
    MADV_WIPEONFORK,
    MFD_ALLOW_SEALING,
    MFD_CLOEXEC,
    MFD_NOEXEC_SEAL,
    PROT_NONE,
    READ_EXECUTE,
    READ_WRITE,
    SHARED_FLAGS,
)
from sidestep.target.process.process import Window
from sidestep.target.process.remote import RemoteCalls, explain
from sidestep.target.process.syscalls import Syscall

REACH = (1 << 31) - (1 << 20)  # of a rel32 jump, less room for the code arena itself
LOWEST, HIGHEST = 1 << 20, (1 << 47) - PAGE
KEEPS_SIZE = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
# What /proc shows of a memfd of ours; its name says which controller made it: pid and start time.
OWNER = re.compile(r"/memfd:sidestep:(\d{1,10}):(\d{1,20})(?: |$)", re.ASCII)
MAX_MAP_COUNT = Path("/proc/sys/vm/max_map_count")


def is_ours(path: str) -> bool:
    """Whether a mapping or descriptor of that path is memory of a session."""
    return OWNER.match(path) is not None


@dataclass(slots=True)
class CodeArena:
    """Read-execute pages for detour buffers; behind those of the first arena of a session the process page
    (private, zero in forked children), whose table of threads begins in the last bytes before it."""

    address: int
    code_size: int
    data_size: int
    used: int = 0

    @property
    def process_page(self) -> int:
        return self.address + self.code_size

    @property
    def size(self) -> int:
        return self.code_size + self.data_size

    @property
    def unused(self) -> int:
        """Bytes for code behind those in use."""
        table = layout.THREAD_SLOT_SIZE if self.data_size else 0
        return self.code_size - table - self.used

    def reaches(self, span: Range) -> bool:
        return max(span.end, self.address + self.size) - min(span.start, self.address) < REACH


class SharedArea:
    """Memory that target and controller share (a memfd): `view` is the controller's mapping of all of it."""

    def __init__(self, span: Range, descriptor: int, view: mmap.mmap) -> None:
        self.span, self.view = span, view
        self._descriptor = descriptor
        self.inode = os.fstat(descriptor).st_ino

    @property
    def address(self) -> int:
        return self.span.start

    def close(self) -> None:
        self.view.close()
        os.close(self._descriptor)


def create_shared(window: Window, file_size: int, mappings: Sequence[tuple[int, int, int]]) -> SharedArea:
    """A new memfd of `file_size` bytes, mapped in the target by `mappings`: (offset from the area's start,
    size, file offset). It is created by the target, opened by us through /proc, and its descriptor closed
    there again. Its name says whose it is, from its first moment on.
    """
    total = max(offset + size for offset, size, _ in mappings)
    check_map_count(window.maps, len(mappings))
    address = find_gap(window.maps, total)
    subject = f"process {window.process.pid}"
    name = f"sidestep:{os.getpid()}:{procfs.read_status(os.getpid()).start_time}\0".encode()
    with window.calls() as calls:
        window.memory.write(calls.scratch, name)
        ours = -1
        made: list[Range] = []
        try:
            descriptor = _memfd(calls)
            try:
                ours = os.open(f"/proc/{window.process.pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
                os.ftruncate(ours, file_size)
                # Nobody who has it can take its pages away from under our mapping.
                fcntl.fcntl(ours, fcntl.F_ADD_SEALS, KEEPS_SIZE)
                if os.fstat(ours).st_size != file_size:
                    raise OSError(errno.EBUSY, "its size was changed by somebody else")
                view = mmap.mmap(ours, file_size)
                _map_shared(calls, address, mappings, descriptor, made)
            finally:
                calls.call(Syscall.CLOSE, descriptor)
        except OSError as error:
            if ours >= 0:
                os.close(ours)
            for span in made:
                calls.call(Syscall.MUNMAP, span.start, span.size)
            raise TargetError(subject, errors.REMOTE_CALL_FAILED, explain(error)) from error
    return SharedArea(Range(address, address + total), ours, view)


def _memfd(calls: RemoteCalls) -> int:
    try:
        return calls.call(Syscall.MEMFD_CREATE, calls.scratch, MFD_CLOEXEC | MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno == errno.EINVAL:  # before Linux 6.3
            return calls.call(Syscall.MEMFD_CREATE, calls.scratch, MFD_CLOEXEC | MFD_ALLOW_SEALING)
        raise


def _map_shared(
    calls: RemoteCalls,
    address: int,
    mappings: Sequence[tuple[int, int, int]],
    descriptor: int,
    made: list[Range],
) -> None:
    """Map sparse memory without touching it, even in a process that called mlockall(MCL_FUTURE): that locks
    only what can be accessed, so access is given when nothing is to be locked any more. What is there goes to
    `made`, also when it fails in the middle."""
    for offset, size, file_offset in mappings:
        calls.call(Syscall.MMAP, address + offset, size, PROT_NONE, SHARED_FLAGS, descriptor, file_offset)
        made.append(Range(address + offset, address + offset + size))
    total = max(offset + size for offset, size, _ in mappings)
    calls.call(Syscall.MUNLOCK, address, total)
    calls.call(Syscall.MPROTECT, address, total, READ_WRITE)
    calls.call(Syscall.MADVISE, address, total, MADV_DONTDUMP)


def create_arena(
    window: Window,
    near: Range,
    code_size: int,
    data_size: int,
    announce: Callable[[CodeArena], None] = lambda arena: None,
    *,
    inherited: bool = False,
) -> CodeArena:
    """A code arena within reach of `near` (a module's whole range), with `data_size` bytes of private
    memory, which is zero in forked children unless it is `inherited`. `announce` notes where it will be, for
    those who come after a killed controller; it is there as a whole or not at all."""
    check_map_count(window.maps, 2)
    arena = CodeArena(find_gap(window.maps, code_size + data_size, near), code_size, data_size)
    announce(arena)
    with window.calls() as calls:
        made = False
        try:
            calls.call(Syscall.MMAP, arena.address, arena.size, READ_EXECUTE, ARENA_FLAGS, 2**64 - 1, 0)
            made = True
            if data_size:
                calls.call(Syscall.MPROTECT, arena.process_page, data_size, READ_WRITE)
                if not inherited:
                    calls.call(Syscall.MADVISE, arena.process_page, data_size, MADV_WIPEONFORK)
        except OSError as error:
            if made:
                calls.call(Syscall.MUNMAP, arena.address, arena.size)
            subject = f"process {window.process.pid}"
            raise TargetError(subject, errors.REMOTE_CALL_FAILED, explain(error)) from error
    return arena


def unmap(window: Window, spans: Sequence[Range], descriptors: Sequence[int] = ()) -> None:
    """Remove areas (and descriptors) of ours from the target, when nothing leads there any more. Raises
    TargetError MEMORY_STAYS where filters of system calls could make that deadly, NO_STACK_TO_LEAVE where no
    thread can be borrowed."""
    if not spans and not descriptors:
        return
    try:
        with window.calls(LEAVING) as calls:
            for span in spans:
                calls.call(Syscall.MUNMAP, span.start, span.size)
            for descriptor in descriptors:
                calls.call(Syscall.CLOSE, descriptor)
    except TargetError as error:
        if error.reason is errors.SECCOMP:
            raise TargetError(error.subject, errors.MEMORY_STAYS, error.detail) from error
        if error.reason is errors.NO_STACK:
            raise TargetError(error.subject, errors.NO_STACK_TO_LEAVE, error.detail) from error
        raise


def check_map_count(maps: Sequence[Mapping], wanted: int) -> None:
    """Take at most a quarter of the mappings that vm.max_map_count leaves; raises TargetError."""
    limit = int(MAX_MAP_COUNT.read_text())
    if wanted > (limit - len(maps)) // 4:
        detail = f"{len(maps)} of {limit} mappings are in use (vm.max_map_count)"
        raise TargetError("the target", errors.REMOTE_CALL_FAILED, detail)


def find_gap(maps: Sequence[Mapping], size: int, near: Range | None = None) -> int:
    """Free address space, page-aligned; within reach of `near` if given. Raises TargetError NO_SPACE_NEAR.

    Growth is kept in mind: mappings are added from the top of a gap downwards, the heap grows upwards, a
    stack downwards; so a margin is left on both sides, as wide as can be had.
    """
    size = size + PAGE - 1 & ~(PAGE - 1)
    edges = [
        Range(0, LOWEST),
        *(Range(m.start, m.end) for m in maps if m.start < HIGHEST),
        Range(HIGHEST, HIGHEST),
    ]
    lowest, highest = LOWEST, HIGHEST - size
    if near is not None:
        lowest, highest = max(lowest, near.end - REACH), min(highest, near.start + REACH - size)
    for margin in (4 << 30, 256 << 20, 16 << 20, 1 << 20, 0):
        choices: list[int] = []
        for below, above in itertools.pairwise(edges):
            low = max(below.end + margin, lowest)
            high = min(above.start - margin - size, highest)
            if low <= high:
                # Below the module as near as the margin allows; above it as far as reach allows: there grows
                # the heap.
                choices.append(high & ~(PAGE - 1))
        if choices:
            origin = near.start if near is not None else HIGHEST
            return min(choices, key=lambda address: (address > origin, abs(address - origin)))
    raise TargetError("the target", errors.NO_SPACE_NEAR, f"{size >> 10} KiB near {near}")


def unreadable_children(pid: int, since: int) -> list[int]:
    """Processes that were forked from one after a moment (of `procfs.now_as_start_time`), and whose mappings
    we may not see: they have another user now, or do not let themselves be looked at."""
    found: list[int] = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/maps", "rb"):
                    continue
            except PermissionError:
                if procfs.descends(int(entry), pid) and procfs.read_status(int(entry)).start_time >= since:
                    found.append(int(entry))
            except OSError:
                continue  # it has ended
    return found


def processes_that_map(inode: int) -> list[int]:
    """Every process that has the memfd mapped: the target and the children that inherited it."""
    found: list[int] = []
    needle = f" {inode} ".encode()
    own = str(os.getpid())
    for entry in os.listdir("/proc"):
        if entry.isdigit() and entry != own:
            try:
                raw = read_raw_maps(int(entry))
            except OSError:
                continue  # gone, or it cannot be read: see `unreadable_children`
            if needle in raw and any(m.inode == inode and is_ours(m.path) for m in parse_maps(raw)):
                found.append(int(entry))
    return found
