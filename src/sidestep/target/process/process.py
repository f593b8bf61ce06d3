"""A process as a target: the thread that traces it, windows in which it is stopped, its launch and its
end."""

from __future__ import annotations

import os
import queue
import select
import signal
import subprocess
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from sidestep import errors
from sidestep.errors import TargetError
from sidestep.maps import Mapping, read_maps
from sidestep.target.process import procfs, ptrace, remote, seccomp
from sidestep.target.process.calls import INJECTED, Call
from sidestep.target.process.memory import ProcessMemory
from sidestep.target.process.ptrace import Event, Request
from sidestep.target.process.sharers import Sharers
from sidestep.target.process.stop import StillAttachedError, Stop, StoppedThread, release, stopped
from sidestep.target.process.suspension import suspension
from sidestep.target.process.waits import Waits

T = TypeVar("T")
TRIES, PAUSE = 40, 0.005  # seconds between windows, for a thread to come to a stack that can be used
SIGNAL_FRAME_ROOM = 16 << 10  # bytes that a stack must have below the stack pointer to lend its thread


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: `code` or `signal`; both None where the kernel does not tell (not a child of
    ours)."""

    code: int | None = None
    signal: int | None = None

    @classmethod
    def from_status(cls, status: int) -> Exit:
        if os.WIFSIGNALED(status):
            return cls(signal=os.WTERMSIG(status))
        return cls(code=os.WEXITSTATUS(status))


class Tracer:
    """The one OS thread that makes all ptrace calls: attachments belong to the thread that made them.

    Work runs to its end even if the caller is interrupted (Ctrl-C reaches only Python's main thread). After a
    failure that may have left threads attached another OS thread takes over and this one ends, so that the
    kernel detaches them.
    """

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._closed = False

    def run(self, function: Callable[[], T]) -> T:
        if threading.current_thread() is self._thread:
            return function()
        future: Future[T] = Future()
        with self._starting:
            if self._closed:
                raise RuntimeError("the process was let go")
            if self._thread is None:
                self._start()
            self._work.put((function, future))
        return future.result()

    def _start(self, before: threading.Thread | None = None) -> None:
        self._thread = threading.Thread(
            target=self._serve, args=(before,), name="sidestep-tracer", daemon=True
        )
        self._thread.start()

    def _serve(self, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()
        while (item := self._work.get()) is not None:
            function, future = item
            try:
                result = function()
            except StillAttachedError as error:
                self._start(threading.current_thread())
                future.set_exception(error)
                return
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

    def close(self) -> None:
        """End the OS thread when what was asked for is done. `run` raises RuntimeError from then on."""
        with self._starting:
            self._closed = True
            self._work.put(None)


class Window:
    """A moment in which every thread of the process is stopped."""

    def __init__(self, process: Process, stop: Stop) -> None:
        self.process, self.stop, self.memory = process, stop, process.memory
        self.maps: list[Mapping] = read_maps(process.pid)

    def __iter__(self) -> Iterator[StoppedThread]:
        return iter(self.stop)

    @property
    def living_thread(self) -> int:
        """Where /proc shows the memory; at the first thread it does so only while that lives."""
        return self.stop.own[0].tid

    @contextmanager
    def calls(self, needed: Sequence[Call] = INJECTED) -> Iterator[remote.RemoteCalls]:
        """Borrow a thread for system calls in the target. Raises TargetError SECCOMP if its filters, which
        may be new, may not allow those that are needed."""

        def permit(thread: StoppedThread) -> None:
            if not self.process.allows_seccomp:
                seccomp.permit(self.process.pid, thread.tid, needed)

        gadgets = self.process.gadgets(self.maps)
        with remote.borrowed(self.stop, self.memory, gadgets, self.stacks(), permit) as calls:
            yield calls

    def stacks(self) -> dict[int, int]:
        """The lowest address of each stack that has room, by thread: the main stack, or one with a guard
        below it.

        Others (those of coroutines lie in the heap) could have somebody else's data right below.
        """
        stacks: dict[int, int] = {}
        maps = self.maps
        starts = [mapping.start for mapping in maps]
        for thread in self.stop:
            pointer = thread.registers.rsp
            at = bisect_right(starts, pointer) - 1
            if at < 0 or pointer >= maps[at].end:
                continue
            mapping, below = maps[at], maps[at - 1] if at else None
            guarded = below is not None and below.end == mapping.start and below.perms.startswith("---")
            usable = mapping.perms.startswith("rw") and (mapping.path == "[stack]" or guarded)
            if usable and pointer - mapping.start >= SIGNAL_FRAME_ROOM:
                stacks[thread.tid] = mapping.start
        return stacks


class Process:
    """A Linux process that is probed. `attach()` and `launch()` make one; the process runs except in a
    window."""

    def __init__(self, pid: int, look: Callable[[int], procfs.Status], tracer: Tracer) -> None:
        """`look` checks the process. The kernel's handle for it, taken before, tells whether the pid has
        changed hands meanwhile: start times have a resolution of 10 ms."""
        self._pidfd = _open_pidfd(pid, look)
        try:
            status = look(pid)
            self.memory = ProcessMemory(pid)
        except BaseException:
            os.close(self._pidfd)
            raise
        self.pid = pid
        self.name = status.name
        self.start_time = status.start_time
        self.child: subprocess.Popen[bytes] | None = None
        self.exit: Exit | None = None
        self.hides_contexts = False  # see base.Inspected
        self.allows_seccomp = False  # the user answers for what filters of system calls do
        self.recording_limits = ""  # why its filters may not allow what recording calls
        self._tracer = tracer
        self._held: Stop | None = None
        self._sharers, self._waits = Sharers(), Waits()
        self._gadgets: remote.Gadgets | None = None
        suspension.target_comes()
        if self._has_ended:
            self.close()
            raise TargetError(f"process {pid}", errors.PROCESS_GONE)

    def in_window(self, function: Callable[[Window], T]) -> T:
        """Run a function while all threads are stopped. Everything slow is prepared before.

        Where it needs a stack and no thread is at one that can be used, threads are given time to come there.
        """

        def work() -> T:
            if self._held is not None:
                result = function(Window(self, self._held))
                self._held.write_back()
                return result
            stop: Stop | None = None
            try:
                with suspension.window(), stopped(self.pid, self._sharers, self._waits) as stop:
                    self._check_same_program()
                    return function(Window(self, stop))
            except ProcessLookupError as error:  # of a ptrace request: it was killed
                raise StillAttachedError(f"process {self.pid}", errors.PROCESS_GONE) from error
            except TargetError as error:
                if error.reason is not errors.PROCESS_GONE and self.memory.is_live:
                    raise
                # It may go on as another program, one of its threads with the id of another.
                raise StillAttachedError(f"process {self.pid}", errors.PROCESS_GONE) from error
            finally:
                if stop is not None and stop.exit_status is not None:
                    self.exit = Exit.from_status(stop.exit_status)

        for attempt in range(TRIES):
            try:
                return self._tracer.run(work)
            except TargetError as error:
                if error.reason is not errors.NO_STACK or attempt + 1 == TRIES:
                    raise
            time.sleep(PAUSE)
        raise AssertionError

    def _check_same_program(self) -> None:
        """The memory file of an address space that an exec replaced reads as empty: TargetError
        PROCESS_GONE."""
        first = read_maps(self.pid)[0]
        try:
            self.memory.read(first.start, 1)
        except OSError as error:  # the old memory still exists, as that of the parent of a vfork
            raise TargetError(f"process {self.pid}", errors.PROCESS_GONE, "it executes a program") from error

    def gadgets(self, maps: Sequence[Mapping]) -> remote.Gadgets:
        """Found once; looked at again each time, since a library can be unloaded."""
        found = self._gadgets
        if found is not None and self.memory.read_available(found.syscall_ret, 3) == remote.SYSCALL_RET:
            patterns = (*remote.RESTORERS, remote.POP_RAX_RET)
            if self.memory.read_available(found.restorer or found.pop_rax, 9).startswith(patterns):
                return found
        # The C library has both; it is seldom the first mapping.
        code = sorted((m for m in maps if "x" in m.perms and m.inode), key=lambda m: "libc" not in m.path)
        self._gadgets = remote.find_gadgets(self.memory, [(m.start, m.end) for m in code])
        return self._gadgets

    # Life and death

    @property
    def _has_ended(self) -> bool:
        """What the kernel's handle tells, until `close()`."""
        return self._pidfd >= 0 and self._ends_within(0)

    def _ends_within(self, seconds: float | None) -> bool:
        handle = select.poll()
        handle.register(self._pidfd, select.POLLIN)
        return bool(handle.poll(None if seconds is None else seconds * 1000))

    @property
    def alive(self) -> bool:
        """Whether the process exists and has not ended (a zombie has ended)."""
        if self.exit is not None or self._has_ended:
            return False
        try:
            status = procfs.read_status(self.pid)
            runs = status.state not in "ZX" or procfs.has_other_threads(self.pid)
        except TargetError:
            return False
        return status.start_time == self.start_time and runs

    @property
    def is_same_program(self) -> bool:
        """Whether it is alive and has not called exec: probes are in an address space, not in a process."""
        return self.memory.is_live and self.alive

    @property
    def has_shadow_stack(self) -> bool:
        """Whether returns are checked against a second stack (CET)."""
        return "shstk" in procfs.read_status(self.pid).features

    @property
    def resident(self) -> int:
        """Bytes of memory that it has now, not counting what is swapped out."""
        return procfs.resident_size(self.pid)

    def catches(self, *signals: int) -> bool:
        """Whether the program has a handler for one of the signals."""
        return procfs.read_status(self.pid).catches(*signals)

    def wait(self, timeout: float | None = None) -> Exit | None:
        """Wait for the end of the process. None when the time is over first. Seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if self.child is not None and self.exit is None:
            # Not by waiting for the child while it is traced: that would be told of its stops.
            if self._pidfd >= 0 and not self._ends_within(timeout):
                return None
            try:
                code = self.child.wait(timeout)
            except subprocess.TimeoutExpired:
                return None
            self.exit = Exit(code=code) if code >= 0 else Exit(signal=-code)
        while self.exit is None:
            if not self.alive:
                self.exit = Exit()
                break
            left = 0.05 if deadline is None else min(0.05, deadline - time.monotonic())
            if left <= 0:
                return None
            time.sleep(left)
        return self.exit

    def resume(self) -> None:
        """Let a launched process run from its first instruction."""

        def work() -> None:
            if self._held is not None:
                release(self._held)
                self._held = None

        if self._held is not None:
            self._tracer.run(work)

    def run_until(self, ready: Callable[[], bool]) -> bool:
        """Let a held program run to its first system call at which `ready()`, and hold it behind that call.

        By system calls, not by a breakpoint: should the controller die meanwhile, the program just runs on.
        False when the program ended or was let go before.
        """

        def work() -> bool:
            stop = self._held
            while stop is not None and stop.threads:
                at_call = _resume_held(stop, self.pid, Request.SYSCALL) == SYSTEM_CALL_STOP
                if at_call and ready():
                    ptrace.call(Request.INTERRUPT, self.pid)
                    while stop.threads and _resume_held(stop, self.pid, Request.CONT) != Event.STOP:
                        pass
                    return bool(stop.threads)
            if stop is not None and stop.exit_status is not None:
                self.exit = Exit.from_status(stop.exit_status)
            return False

        return self._tracer.run(work)

    @property
    def held(self) -> bool:
        return self._held is not None

    def hold(self, stop: Stop) -> None:
        self._held = stop

    def close(self) -> None:
        """Let go of the process; it runs on."""
        self.resume()
        self._tracer.close()
        self.memory.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
            suspension.target_goes()


def _open_pidfd(pid: int, look: Callable[[int], object]) -> int:
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        look(pid)  # says why, if it can: a thread has no handle
        raise TargetError(f"process {pid}", errors.NO_SUCH_PROCESS) from error


SYSTEM_CALL_STOP = -1


def _resume_held(stop: Stop, pid: int, request: Request) -> int:
    """Resume the only thread of a held process, passing on a signal; the event of its next stop."""
    thread = stop.threads[pid]
    thread.write_back()
    thread.forget()
    number = 0
    while True:
        ptrace.call(request, pid, 0, number)
        status = ptrace.wait_long(pid)
        if not os.WIFSTOPPED(status & 0xFFFF):
            stop.exit_status = status
            stop.threads.clear()
            return 0
        number = os.WSTOPSIG(status & 0xFFFF)
        if number == signal.SIGTRAP | 0x80:
            return SYSTEM_CALL_STOP
        if event := ptrace.event_of(status):
            return event


def attach_child(pid: int) -> Process:
    """A process that has memory of ours. What its filters of system calls allow is asked before each call."""
    return Process(pid, procfs.check_attachable, Tracer())


def attach(pid: int, *, allow_seccomp: bool = False) -> Process:
    """A running process by pid. Nothing in it is touched yet. Raises TargetError with the reason.

    One that filters its system calls is stopped to read the filters, unless `allow_seccomp`.
    """
    if pid == os.getpid():
        raise TargetError(f"process {pid}", errors.NO_PERMISSION, "a process cannot probe itself")
    if procfs.is_waited_for_here(pid):
        raise TargetError(f"process {pid}", errors.WAITED_FOR_HERE)
    process = Process(pid, procfs.check_attachable, Tracer())
    process.allows_seccomp = allow_seccomp
    if not allow_seccomp and any(procfs.seccomp_mode(pid, tid) for tid in procfs.threads(pid)):
        try:
            filters = process.in_window(lambda window: seccomp.filters_of(pid, [each.tid for each in window]))
            process.recording_limits = seccomp.check(pid, filters)
        except BaseException:
            process.close()
            raise
    return process
