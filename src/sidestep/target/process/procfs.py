"""What /proc says about a process: existence, state, who traces it, threads. Reads only."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sidestep import errors
from sidestep.address import PAGE
from sidestep.errors import Refusal, TargetError
from sidestep.maps import LARGEST_PID
from sidestep.target.process.syscalls import Syscall

PF_EXITING, PF_FORKNOEXEC, PF_KTHREAD = 0x4, 0x40, 0x00200000  # <linux/sched.h>
WITHOUT_MEMORY = PF_EXITING | PF_KTHREAD
YAMA_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
YAMA = {
    "1": "only its parents may trace it",
    "2": "only root may trace",
    "3": "nobody may trace until the next boot",
}
_MOST_PIDS = 12  # that a message lists
KCMP_VM = 1  # <linux/kcmp.h>
ALL_BUT_KILL_AND_STOP = 2**64 - 1 & ~(1 << signal.SIGKILL - 1 | 1 << signal.SIGSTOP - 1)
_syscall = ctypes.PyDLL(None).syscall


@dataclass(frozen=True, slots=True)
class Status:
    """The fields of /proc/PID/status and /proc/PID/stat that decide whether a process can be probed."""

    pid: int
    name: str
    state: str
    tracer: int
    thread_group: int
    caught_signals: int
    start_time: int
    flags: int
    parent: int
    uids: tuple[int, ...]  # real, effective, saved
    gids: tuple[int, ...]
    features: tuple[str, ...] = ()
    own_pid: int = 0  # its pid in its own pid namespace

    def catches(self, *signals: int) -> bool:
        return any(self.caught_signals >> (number - 1) & 1 for number in signals)


def read_status(pid: int) -> Status:
    """Raises TargetError NO_SUCH_PROCESS. Names are bytes of the target: shown with escapes."""
    try:
        status = Path(f"/proc/{pid}/status").read_bytes()
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError) as error:
        raise TargetError(f"process {pid}", errors.NO_SUCH_PROCESS) from error
    fields = dict(line.split(b":\t", 1) for line in status.splitlines() if b":\t" in line)
    # The name in stat stands in parentheses and may itself hold any byte, parentheses too.
    numbers = stat[stat.rindex(b")") + 2 :].split()
    return Status(
        pid=pid,
        name=printable(fields.get(b"Name", b"?")),
        state=numbers[0].decode(),
        tracer=int(fields.get(b"TracerPid", b"0")),
        thread_group=int(fields.get(b"Tgid", b"0")),
        caught_signals=int(fields.get(b"SigCgt", b"0"), 16),
        start_time=int(numbers[19]),
        flags=int(numbers[6]),
        parent=int(numbers[1]),
        uids=tuple(int(uid) for uid in fields.get(b"Uid", b"").split()[:3]),
        gids=tuple(int(gid) for gid in fields.get(b"Gid", b"").split()[:3]),
        own_pid=int(fields.get(b"NStgid", str(pid).encode()).split()[-1]),
        features=tuple(fields.get(b"x86_Thread_features", b"").decode("ascii", "replace").split()),
    )


def printable(raw: bytes) -> str:
    """Text of the target for a terminal: UTF-8 where it is, no control characters."""
    text = raw.decode("utf-8", "replace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def threads(pid: int) -> list[int]:
    """The thread ids of a process; raises TargetError when it is gone."""
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except (FileNotFoundError, ProcessLookupError) as error:
        raise TargetError(f"process {pid}", errors.PROCESS_GONE) from error


def own_threads(pid: int) -> list[int]:
    """The thread ids of a process as it sees them itself, in its pid namespace."""
    return [own for _, own in _own_ids(pid)]


def _own_ids(pid: int) -> Iterator[tuple[int, int]]:
    """The ids of each thread: here, and in the pid namespace of the process."""
    for tid in threads(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            status = Path(f"/proc/{pid}/task/{tid}/status").read_bytes()
            ids = re.search(rb"^NSpid:.*?(\d+)$", status, re.M)
            yield tid, int(ids[1]) if ids else tid


def thread_name(pid: int, tid: int) -> str:
    """The name of a thread as it is now, "" if it is gone. Not fit to be printed: it is the target's."""
    try:
        comm = Path(f"/proc/{pid}/task/{tid}/comm").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return comm.rstrip(b"\n").decode("utf-8", "surrogateescape")


def thread_names(pid: int) -> dict[int, str]:
    """The names of the threads of a process, by their ids in its own pid namespace. Raises TargetError."""
    return {own: thread_name(pid, tid) for tid, own in _own_ids(pid)}


def program_name(pid: int) -> str:
    """The file name of the program that a process runs, "" where that must not be known. Raises
    FileNotFoundError if it runs none (any more)."""
    try:
        program = os.readlink(f"/proc/{pid}/exe".encode())
    except PermissionError:
        return ""
    except ProcessLookupError as error:
        raise FileNotFoundError(f"/proc/{pid}/exe") from error
    return printable(os.path.basename(program).removesuffix(b" (deleted)"))


def has_other_threads(pid: int) -> bool:
    """Whether threads are left when the first one has ended; raises TargetError when all are gone."""
    return any(tid != pid and thread_state(pid, tid) not in "ZX" for tid in threads(pid))


def thread_state(pid: int, tid: int) -> str:
    """The state letter of one thread (R S D T t Z X); X when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/task/{tid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return "X"
    return stat[stat.rindex(b")") + 2 :].split()[0].decode()


def blocks_everything(pid: int, tid: int) -> bool:
    """Whether a thread blocks every signal that can be blocked; False when it is gone."""
    try:
        status = Path(f"/proc/{pid}/task/{tid}/status").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
    found = re.search(rb"^SigBlk:\s*([0-9a-f]+)$", status, re.M)
    return found is not None and int(found[1], 16) == ALL_BUT_KILL_AND_STOP


def seccomp_mode(pid: int, tid: int) -> int:
    """How a thread's system calls are filtered: 0 not at all, 1 strict mode, 2 filters; 0 when it is gone."""
    try:
        status = Path(f"/proc/{pid}/task/{tid}/status").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    found = re.search(rb"^Seccomp:\t(\d+)$", status, re.M)
    return int(found[1]) if found else 0


def resident_size(pid: int) -> int:
    """Bytes of memory that a process has now; raises TargetError when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * PAGE
    except (FileNotFoundError, ProcessLookupError) as error:
        raise TargetError(f"process {pid}", errors.PROCESS_GONE) from error


def share_memory(pid: int, other: int) -> bool:
    """Whether two processes (or threads) run in one address space: a child of vfork does until it calls
    exec. One that has ended has none."""
    result: int = _syscall(Syscall.KCMP, pid, other, KCMP_VM, 0, 0)
    return result == 0


def descends(pid: int, ancestor: int) -> bool:
    """Whether a process was forked, by way of processes that still exist, from another and runs the same
    program: none of them has called exec since."""
    try:
        while pid not in (0, 1, ancestor):
            status = read_status(pid)
            if not status.flags & PF_FORKNOEXEC:
                return False
            pid = status.parent
    except TargetError:
        return False
    return pid == ancestor


def runs_its_parents_program(pid: int) -> bool:
    """Whether a process exists that has not called exec since it was forked."""
    try:
        return bool(read_status(pid).flags & PF_FORKNOEXEC)
    except TargetError:
        return False


def now_as_start_time() -> int:
    """The present moment in the unit of `Status.start_time`: clock ticks since the system was started."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def last_pid() -> bytes:
    """Changes whenever a process or thread is made in this pid namespace or one below it."""
    with open("/proc/loadavg", "rb", buffering=0) as file:
        return file.read(256).split()[-1]


def find(name: str) -> int:
    """The one process of that name (comm, or the file name of its program); raises TargetError."""
    found: list[tuple[int, str]] = []
    for pid in _all_pids():
        if pid == os.getpid():
            continue
        try:
            comm = Path(f"/proc/{pid}/comm").read_bytes().rstrip(b"\n")
            program = os.path.basename(os.readlink(f"/proc/{pid}/exe")).removesuffix(" (deleted)")
        except OSError:
            continue  # gone in the meantime, a kernel thread, or another user's
        if name in (printable(comm), program) or (len(comm) == 15 and name.encode().startswith(comm)):
            found.append((pid, printable(comm)))
    if not found:
        raise TargetError(f"process {name!r}", errors.NO_SUCH_PROCESS)
    if len(found) > 1:
        detail = _list_related([pid for pid, _ in sorted(found)])
        raise TargetError(f"process {name!r}", errors.SEVERAL_PROCESSES, detail)
    return found[0][0]


def _list_related(pids: Sequence[int]) -> str:
    """Pids, and which of them is the parent of how many of the others."""
    children = Counter(_parent(pid) for pid in pids)
    shown = [f"{pid} (parent of {children[pid]} of them)" if children[pid] else str(pid) for pid in pids]
    return ", ".join(shown[:_MOST_PIDS]) + (" ..." if len(shown) > _MOST_PIDS else "")


def _parent(pid: int) -> int:
    """0 when it is gone."""
    try:
        return read_status(pid).parent
    except TargetError:
        return 0


def is_used(pid: int) -> bool:
    """Whether a process or thread of this pid namespace has that number."""
    return os.path.exists(f"/proc/{pid}")


def choose(target: int | str) -> int:
    """The pid of a process that is given by pid or by name. Raises TargetError.

    A number that nobody has here may be the one that a process has in a pid namespace of its own.
    """
    if isinstance(target, str) and not target.isdigit():
        return find(target)
    pid = int(target)
    if not 0 < pid <= LARGEST_PID:
        raise TargetError(f"process {pid}", errors.NO_SUCH_PROCESS)
    if is_used(pid):
        return pid
    inside = [other for other in _all_pids() if own_pid(other) == pid]
    if len(inside) > 1:
        pids = ", ".join(map(str, sorted(inside)[:_MOST_PIDS]))
        raise TargetError(f"process {pid}", errors.SEVERAL_NAMESPACES, pids)
    return inside[0] if inside else pid


def _all_pids() -> Iterator[int]:
    return (int(entry) for entry in os.listdir("/proc") if entry.isdigit())


def own_pid(pid: int) -> int:
    """The pid of a process in its own pid namespace, 0 when it is gone."""
    try:
        return read_status(pid).own_pid
    except TargetError:
        return 0


def check_attachable(pid: int) -> Status:
    """Refuse what cannot be probed, before anything is touched; the errors say what to do."""
    status = read_status(pid)
    subject = f"process {pid} ({status.name})"
    if status.state in "ZX":
        detail = "its first thread has ended, others run on" if has_other_threads(pid) else ""
        raise TargetError(subject, errors.ZOMBIE, detail)
    if status.flags & PF_KTHREAD:
        raise TargetError(subject, errors.KERNEL_THREAD)
    if status.thread_group not in (0, pid):
        raise TargetError(
            subject, errors.NO_SUCH_PROCESS, f"{pid} is a thread of process {status.thread_group}"
        )
    try:
        with open(f"/proc/{pid}/mem", "rb"):
            pass
        with open(f"/proc/{pid}/exe", "rb") as program:
            header = program.read(20)
    except PermissionError as error:
        refusal = refused_permission(status)
        raise TargetError(subject, refusal.reason, refusal.detail) from error
    except (FileNotFoundError, ProcessLookupError) as error:
        raise TargetError(subject, errors.NO_SUCH_PROCESS) from error
    if header[:4] != b"\x7fELF" or header[4] != 2 or header[18:20] != b"\x3e\x00":
        raise TargetError(subject, errors.NOT_64_BIT)
    if status.tracer:
        raise TargetError(subject, errors.ALREADY_TRACED, f"pid {status.tracer}")
    return status


def is_waited_for_here(pid: int) -> bool:
    """Whether a thread of this process is waiting for the end of a child, and `pid` is such."""
    own = os.getpid()
    if read_status(pid).parent != own:
        return False
    for tid in threads(own):
        try:
            call = Path(f"/proc/{own}/task/{tid}/syscall").read_text().split()
        except OSError:
            continue  # it has ended, or this system does not tell
        # waitid has the kind of what is waited for before its number; -1 and 0 stand for several
        argument = {str(Syscall.WAIT4.value): 1, str(Syscall.WAITID.value): 2}.get(call[0])
        if argument is not None and ctypes.c_int(int(call[argument], 16)).value in (pid, -1, 0):
            return True
    return False


def refused_permission(status: Status) -> Refusal:
    """From what the kernel asks in this order (ptrace(2), "Ptrace access mode checking")."""
    me = os.geteuid()
    for word, theirs, mine in (("uid", status.uids, me), ("gid", status.gids, os.getegid())):
        if me and (others := [number for number in theirs if number != mine]):
            return Refusal(errors.NO_PERMISSION, f"it runs as {word} {others[0]}, you as {word} {mine}")
    try:
        shown_owner = os.stat(f"/proc/{status.pid}/maps").st_uid
    except FileNotFoundError:
        return Refusal(errors.NO_SUCH_PROCESS)
    if me and shown_owner != me:  # of a process that is not dumpable the kernel makes root the owner
        return Refusal(errors.NOT_DUMPABLE)
    try:
        scope = YAMA_SCOPE.read_text().strip()
    except OSError:
        scope = "0"
    if scope in YAMA:
        return Refusal(errors.PTRACE_SCOPE, f"kernel.yama.ptrace_scope is {scope}, {YAMA[scope]}")
    return Refusal(errors.NO_PERMISSION, "it has more capabilities than you, or another user namespace")
