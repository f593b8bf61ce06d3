"""The table of reasons why something is refused, and the exceptions that carry them.

A reason has a name that scripts can test, a sentence that says what is wrong, and a hint that says
what to do next. Every exception of Sidestep derives from `SidestepError` and prints in three lines at most.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something was refused. `errno` is what the kernel's interface would return."""

    name: str
    sentence: str
    hint: str
    errno: int

    @property
    def helps_to_move(self) -> bool:
        """Whether another instruction may be probed instead."""
        return self.hint.startswith(_ANOTHER)


_ANOTHER = "probe another instruction"
_TABLE: dict[str, Reason] = {}


def _reason(name: str, sentence: str, hint: str, number: int = errno.EINVAL) -> Reason:
    reason = Reason(name, sentence, hint, number)
    _TABLE[name] = reason
    return reason


def reasons() -> tuple[Reason, ...]:
    """Every reason, in the order of the table."""
    return tuple(_TABLE.values())


# The target process
NO_SUCH_PROCESS = _reason(
    "no-such-process", "no such process", "`pgrep -l NAME` lists processes", errno.ESRCH
)
SEVERAL_PROCESSES = _reason(
    "several-processes", "several processes have that name", "give one of the pids", errno.EINVAL
)
SEVERAL_NAMESPACES = _reason(
    "several-namespaces",
    "several processes have that pid in namespaces of their own",
    "give the pid that it has here",
    errno.EINVAL,
)
NO_PERMISSION = _reason(
    "no-permission",
    "not allowed to trace this process",
    "run as its user or as root (CAP_SYS_PTRACE), or launch it with `-- CMD`",
    errno.EPERM,
)
NOT_DUMPABLE = _reason(
    "not-dumpable",
    "the process has shut out debuggers: it changed its user, cannot be read, or set PR_SET_DUMPABLE to 0",
    "run as root (CAP_SYS_PTRACE)",
    errno.EPERM,
)
PTRACE_SCOPE = _reason(
    "ptrace-scope",
    "this system restricts who may trace a process (yama)",
    "launch it with `-- CMD`, let it call prctl(PR_SET_PTRACER), run as root, or set that to 0",
    errno.EPERM,
)
ALREADY_TRACED = _reason(
    "already-traced", "another process is tracing it", "end that debugger or tracer first", errno.EBUSY
)
WAITED_FOR_HERE = _reason(
    "waited-for-here",
    "another thread of this program waits for the process, and would be told of stops as if it had ended",
    "probe it from another program, or launch it with sidestep.launch() and wait with Target.wait()",
    errno.EBUSY,
)
ZOMBIE = _reason(
    "zombie", "the process has exited and waits for its parent", "nothing is left to probe", errno.ESRCH
)
KERNEL_THREAD = _reason(
    "kernel-thread",
    "this is a kernel thread, it has no user code",
    "probe it with the kernel's own kprobes",
    errno.EINVAL,
)
NOT_64_BIT = _reason(
    "32-bit", "the process does not run x86-64 code", "only 64-bit processes can be probed", errno.ENOEXEC
)
PROCESS_GONE = _reason(
    "process-gone",
    "the process went away",
    "it has ended, or runs another program now: `ps -p PID` tells",
    errno.ESRCH,
)
DETACHED = _reason("detached", "this target was detached", "attach again", errno.ESRCH)
SECCOMP = _reason(
    "seccomp",
    "the process filters its system calls (seccomp)",
    "`--allow-seccomp` probes it all the same, and it may be killed; root may read the filters first",
    errno.EPERM,
)
MEMORY_STAYS = _reason(
    "memory-stays",
    "its code is as it was, but memory of ours stays there, since its filters may forbid to unmap it",
    "it does no harm, and goes with the process",
    errno.EPERM,
)
NO_STACK_TO_LEAVE = _reason(
    "no-stack-to-leave",
    "its code is as it was, but memory of ours stays there, since every thread runs on a coroutine's stack",
    "it does no harm; `sidestep clean -p PID` takes it away once a thread is back on a stack of the system's",
    errno.ENOMEM,
)
THREAD_STUCK = _reason(
    "thread-stuck",
    "a thread could not be stopped",
    "it sleeps in the kernel without interruption, or gets no CPU: try again later",
    errno.EBUSY,
)
NOT_LET_GO = _reason(
    "not-let-go",
    "a thread that was stopped could not be let go in the usual way",
    "the kernel lets it go now; look whether the process runs",
    errno.EIO,
)
NO_GADGET = _reason(
    "no-syscall-instruction",
    "no safe place to run a system call was found in the process",
    "its programs hold no system call with a return behind it",
    errno.ENOSYS,
)
NO_STACK = _reason(
    "no-stack",
    "no thread runs on a stack with known room: those of coroutines lie in the heap or in variables",
    "attach before the program switches stacks, or when a thread waits on one that the system gave it",
    errno.ENOMEM,
)
NO_SPACE_NEAR = _reason(
    "no-space-near",
    "no free address space within 2 GiB of the code",
    "`/proc/PID/maps` shows what fills the space: start it with less there, or probe another library",
    errno.ENOMEM,
)
REMOTE_CALL_FAILED = _reason(
    "remote-call-failed",
    "a system call inside the process failed",
    "where a limit is reached (RLIMIT_AS, a cgroup, vm.max_map_count), raise it or probe less at once",
    errno.EIO,
)
OTHER_SESSION = _reason(
    "other-session",
    "another controller is probing this process",
    "end that one: it takes its probes out itself",
    errno.EBUSY,
)

# Files and symbols
ELF_MALFORMED = _reason(
    "elf-malformed",
    "this is not a usable ELF file",
    "compare it with the file that its package installs",
    errno.ENOEXEC,
)
NO_SUCH_MODULE = _reason(
    "no-such-module",
    "no loaded module has that name",
    "`/proc/PID/maps` lists what is loaded",
    errno.ENOENT,
)
NO_SUCH_SYMBOL = _reason(
    "no-such-symbol",
    "no function has that name",
    "`sidestep funcs` with a GLOB lists functions",
    errno.ENOENT,
)
NO_SUCH_VARIABLE = _reason(
    "no-such-variable",
    "no variable and no function has that name",
    "`@ADDR` takes the address of what has no symbol",
    errno.ENOENT,
)
AMBIGUOUS = _reason(
    "ambiguous", "the name stands for several functions", "name one of them exactly", errno.EINVAL
)
OFFSET_OUTSIDE = _reason(
    "offset-outside",
    "the offset lies outside the function",
    "`sidestep check` shows the instructions of a function and their offsets",
    errno.EINVAL,
)
IFUNC_UNRESOLVED = _reason(
    "ifunc-unresolved",
    "the function has several variants and none was chosen yet",
    "probe the variant by its own name, or try again when it was called",
    errno.EAGAIN,
)
NOT_IN_TEXT = _reason(
    "not-in-text",
    "the address is not in executable code of a loaded file",
    "`/proc/PID/maps` shows what is executable, and of which file",
    errno.EFAULT,
)

# Placement of a probe
NOT_A_BOUNDARY = _reason(
    "not-a-boundary", "the address is inside an instruction", "use the start of the instruction", errno.EILSEQ
)
NOT_DECODABLE = _reason(
    "not-decodable",
    "the function has bytes that are no known instruction",
    "probe another function",
    errno.EILSEQ,
)
UNREACHABLE = _reason(
    "unreachable",
    "nothing leads to this code, it may be data",
    "probe another instruction of the function",
    errno.EILSEQ,
)
NOT_RELOCATABLE = _reason(
    "not-relocatable",
    "an instruction cannot run at another address",
    _ANOTHER,
    errno.EOPNOTSUPP,
)
TOO_SHORT = _reason(
    "too-short",
    "there are not five bytes for a jump before the function ends",
    _ANOTHER,
    errno.ENOSPC,
)
JUMP_INTO_REGION = _reason(
    "jump-into-region",
    "code jumps into the bytes that the jump would cover",
    _ANOTHER,
    errno.EBUSY,
)
INDIRECT_JUMP = _reason(
    "indirect-jump",
    "a computed jump in the function may lead into the bytes that the jump would cover",
    _ANOTHER,
    errno.EBUSY,
)
CALL_IN_REGION = _reason(
    "call-in-region",
    "a call stands inside the bytes that the jump would cover",
    _ANOTHER,
    errno.EBUSY,
)
LANDING_PAD = _reason(
    "landing-pad",
    "an exception handler starts inside the bytes that the jump would cover",
    _ANOTHER,
    errno.EBUSY,
)
SAVED_IP = _reason(
    "saved-ip",
    "a thread will return into the bytes that the jump would cover",
    "try again at another moment",
    errno.EAGAIN,
)
MAY_FAULT = _reason(
    "may-fault",
    "an instruction may fault and the program handles faults itself",
    _ANOTHER,
    errno.EBUSY,
)
MAY_FAULT_LATER = _reason(
    "may-fault-later",
    "an instruction may fault, and the program has not begun: it may install handlers for faults",
    f"{_ANOTHER}, or attach with -p when it has begun",
    errno.EBUSY,
)
CROSSES_PAGE = _reason(
    "crosses-page",
    "the jump would lie across two pages and could not be written in one step",
    _ANOTHER,
    errno.EBUSY,
)
FOREIGN_BREAKPOINT = _reason(
    "foreign-breakpoint",
    "somebody else has changed the code here",
    "end that debugger or tracer first",
    errno.EBUSY,
)
FOREIGN_BYTES = _reason(
    "foreign-bytes",
    "the code in memory is not the code of the file",
    "another tool may have changed it, or the program itself: end that tool, or probe another function",
    errno.EBUSY,
)
CANCELLATION = _reason(
    "cancellation",
    "pthread_cancel looks whether a thread is in exactly this code, and a copy is elsewhere",
    "probe the function that makes the system call (read, write, ...)",
    errno.EINVAL,
)
BLACKLISTED = _reason(
    "blacklisted",
    "probing this code is not allowed",
    "probe the functions that call it",
    errno.EINVAL,
)
TEXT_COPIED = _reason(
    "text-copied",
    "the program runs a copy of this code in anonymous memory",
    "run it without that option (huge pages for code), or probe another module",
    errno.EACCES,
)
SHARED_TEXT = _reason(
    "shared-text",
    "the code is mapped shared, a change could reach the file",
    "only code that is mapped private can be probed",
    errno.EACCES,
)

# Probe objects
ALREADY_REGISTERED = _reason(
    "already-registered",
    "this probe is registered already",
    "unregister it first, or make another probe of the same place",
    errno.EINVAL,
)
NOT_REGISTERED = _reason(
    "not-registered",
    "this probe is not registered",
    "register it first",
    errno.EINVAL,
)
NOT_SUPPORTED = _reason(
    "not-supported",
    "this is not supported",
    "`sidestep --grammar` shows what can be written",
    errno.EOPNOTSUPP,
)
NOTHING_LEFT = _reason(
    "nothing-left",
    "none of the functions that matched can be probed",
    "`sidestep check` says of each why",
    errno.ENOENT,
)
MAP_IN_USE = _reason(
    "map-in-use", "the map belongs to another session", "make a map for each session", errno.EBUSY
)
COMPILER_FAILED = _reason(
    "compiler-failed",
    "the handler could not be compiled",
    "the text above says where; a smaller handler may do",
    errno.EINVAL,
)
NO_COMPILER = _reason("no-compiler", "native handlers need LLVM", "pip install '.[native]'", errno.ENOENT)
NO_ARROW = _reason("no-arrow", "Arrow tables need pyarrow", "pip install '.[arrow]'", errno.ENOENT)
HANDLER_TOO_LARGE = _reason("handler-too-large", "the handler is too large", "write less", errno.E2BIG)
TOO_MANY_PROBES = _reason(
    "too-many-probes",
    "the session has no room for more probes",
    "unregister probes, or detach and attach again",
    errno.ENOSPC,
)


class SidestepError(Exception):
    """Base of everything Sidestep raises on purpose."""


class ProbeSyntaxError(SidestepError, ValueError):
    """A probe text that cannot be parsed. `column` counts characters from 0."""

    def __init__(self, text: str, column: int, message: str, hint: str = "") -> None:
        self.text, self.column, self.message, self.hint = text, column, message, hint
        super().__init__(text, column, message, hint)

    def __str__(self) -> str:
        tail = f" ({self.hint})" if self.hint else ""
        if not self.text.strip():
            return f"{self.message}{tail}"
        return f"{self.message}{tail}\n  {self.text}\n  {' ' * self.column}^"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A verdict that says no: the rule, and the detail (the instruction, the path, the pid)."""

    reason: Reason
    detail: str = ""

    def __str__(self) -> str:
        text = f"{self.reason.sentence}: {self.detail}" if self.detail else self.reason.sentence
        return f"{text}\n  {self.reason.hint}" if self.reason.hint else text


class RefusedError(SidestepError):
    """Something was refused for a `reason` of the table; `detail` names what it was about."""

    def __init__(self, subject: str, reason: Reason, detail: str = "") -> None:
        self.subject, self.reason, self.detail = subject, reason, detail
        self.errno = reason.errno
        super().__init__(subject, reason, detail)

    @property
    def refusal(self) -> Refusal:
        return Refusal(self.reason, self.detail)

    def __str__(self) -> str:
        return f"{self.subject}: {self.refusal}"


class TargetError(RefusedError):
    """The target cannot be attached, stopped or changed."""

    @property
    def is_gone(self) -> bool:
        """Whether that is because it has ended."""
        return self.reason in (NO_SUCH_PROCESS, PROCESS_GONE, ZOMBIE)


class ProbeError(RefusedError):
    """A probe cannot be resolved or placed. `subject` is the probe as the user wrote it."""
