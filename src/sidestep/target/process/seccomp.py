"""Whether the system call filters of a process (seccomp) allow the calls that probing it makes."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from functools import lru_cache

from sidestep import errors
from sidestep.errors import TargetError
from sidestep.target.process import procfs, ptrace
from sidestep.target.process.calls import COUNTING, INJECTED, RECORDING, WRITING, Call
from sidestep.target.process.filters import ACTION_MASK, ALLOW, LOG, answers, decode
from sidestep.target.process.ptrace import Request

ACTIONS: dict[int | None, str] = {
    0x80000000: "it kills the process",
    0x00000000: "it kills the thread",
    0x00030000: "it sends SIGSYS",
    0x00050000: "it makes the call fail",
    0x7FC00000: "it asks a supervisor",
    0x7FF00000: "it asks a tracer",
}
"""What a filter does to a call that it does not just allow, by SECCOMP_RET_*."""

STRICT = 1  # the mode; 2 means filters
_MOST_FILTERS = 512


def filters_of(pid: int, tids: Iterable[int]) -> frozenset[bytes]:
    """The filters of stopped threads, for `check`. Raises TargetError SECCOMP: strict mode, or they cannot be
    read."""
    return frozenset(raw for tid in tids for raw in _filters(pid, tid))


def check(pid: int, filters: Iterable[bytes]) -> str:
    """Refuse filters that probing may meet: TargetError SECCOMP. It takes milliseconds: not in a stop.

    Returns why recording may meet them where counting does not; empty when nothing does.
    """
    if objection := find_objection(filters, INJECTED + COUNTING):
        raise TargetError(f"process {pid}", errors.SECCOMP, objection)
    return find_objection(filters, RECORDING + WRITING)


def permit(pid: int, tid: int, calls: Sequence[Call]) -> None:
    """Raises TargetError SECCOMP if filters of a stopped thread may not allow the calls."""
    if objection := find_objection(_filters(pid, tid), calls):
        raise TargetError(f"process {pid}", errors.SECCOMP, objection)


def find_objection(filters: Iterable[bytes], calls: Sequence[Call]) -> str:
    """The first call that filters may not allow, in words; empty if they allow all of them."""
    objections = (_objection(raw, call) for raw in filters for call in calls)
    return next((objection for objection in objections if objection), "")


@lru_cache(maxsize=4096)
def _objection(raw: bytes, call: Call) -> str:
    program = decode(raw)
    for answer in answers(program, call):
        action = None if answer is None else answer & ACTION_MASK
        if action not in (ALLOW, LOG):
            what = ACTIONS.get(action, "its answer is not known")
            return f"a filter may not allow {call.name} ({what})"
    return ""


def _filters(pid: int, tid: int) -> list[bytes]:
    mode = procfs.seccomp_mode(pid, tid)
    if mode == STRICT:
        raise TargetError(f"process {pid}", errors.SECCOMP, "strict mode: any call of ours would kill it")
    try:
        return read_filters(tid) if mode else []
    except PermissionError as error:
        detail = "only CAP_SYS_ADMIN may read its filters, in a process that has none itself"
        raise TargetError(f"process {pid}", errors.SECCOMP, detail) from error
    except ProcessLookupError:
        return []  # it was killed in the stop
    except OSError as error:
        detail = f"its filters cannot be read: {error.strerror}"
        raise TargetError(f"process {pid}", errors.SECCOMP, detail) from error


def read_filters(tid: int) -> list[bytes]:
    """The filters of a stopped thread, to be decoded. Raises OSError: EACCES without CAP_SYS_ADMIN."""
    filters: list[bytes] = []
    while len(filters) < _MOST_FILTERS:
        try:
            count = ptrace.call(Request.SECCOMP_GET_FILTER, tid, len(filters))
        except FileNotFoundError:  # there are no more
            break
        raw = ctypes.create_string_buffer(count * 8)
        ptrace.call(Request.SECCOMP_GET_FILTER, tid, len(filters), ctypes.addressof(raw))
        filters.append(raw.raw)
    return filters
