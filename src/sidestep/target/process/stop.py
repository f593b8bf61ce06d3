"""Stop the world: every thread of a process stopped for the length of a `with`, without a trace; and of the
processes that run in its memory.

What the program must not notice: a system call that signal(7) lists as never restarted would return
EINTR after a stop; it is turned into one that restarts. Signals that arrive meanwhile are delivered by
the kernel as always, in their order. A process stopped by job control stays stopped.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from sidestep import errors
from sidestep.errors import TargetError
from sidestep.target.process import procfs, ptrace
from sidestep.target.process.ptrace import Event, Option, Registers, Request
from sidestep.target.process.rescue import rescue
from sidestep.target.process.sharers import Sharers, all_processes, sharing
from sidestep.target.process.syscalls import EINTR, ERESTARTNOHAND, NEVER_RESTARTED
from sidestep.target.process.waits import Waits, may_begin_anew

LONGEST_PAUSE = 0.05  # seconds that the other threads wait for one that does not come out of the kernel
PATIENCE = 5.0  # seconds in which such a thread must have come out
REAPING = 0.1  # seconds in which threads that were killed have ended
ATTEMPTS = 4


class StillAttachedError(TargetError):
    """Threads may still be attached, and only the end of the OS thread that attached them lets them go."""


class StoppedThread:
    """A thread in a ptrace stop; its registers are read once and written back when they changed."""

    __slots__ = ("_registers", "changed", "process", "tid")

    def __init__(self, tid: int, process: int) -> None:
        self.tid, self.process = tid, process
        self._registers: Registers | None = None
        self.changed = False

    @property
    def registers(self) -> Registers:
        if self._registers is None:
            self._registers = ptrace.get_registers(self.tid)
        return self._registers

    def move(self, address: int) -> None:
        """Make the thread go on at another instruction pointer."""
        self.registers.rip = address
        self.changed = True

    def write_back(self) -> None:
        """One that was killed executes nothing more, so it needs none."""
        if self.changed and self._registers is not None:
            with suppress(ProcessLookupError):
                ptrace.set_registers(self.tid, self._registers)
            self.changed = False

    def forget(self) -> None:
        """Read the registers anew at the next use (after the thread ran)."""
        self._registers = None
        self.changed = False


class Stop:
    """The threads of one stopped process, and of those that run in its memory."""

    def __init__(self, pid: int, waits: Waits) -> None:
        self.pid, self.waits = pid, waits
        self.threads: dict[int, StoppedThread] = {}
        self.process_of: dict[int, int] = {}  # of each thread that was attached
        self.killed: list[int] = []
        self.exit_status: int | None = None

    def __iter__(self) -> Iterator[StoppedThread]:
        return iter(self.threads.values())

    @property
    def own(self) -> list[StoppedThread]:
        """The threads of the process itself."""
        return [thread for thread in self.threads.values() if thread.process == self.pid]

    def check_alive(self) -> None:
        if not self.own:
            raise TargetError(f"process {self.pid}", errors.PROCESS_GONE)

    def write_back(self) -> None:
        for thread in self.threads.values():
            thread.write_back()

    def thread_exited(self, tid: int) -> None:
        """It was killed: see `reap`."""
        self.threads.pop(tid, None)
        self.killed.append(tid)

    def reap(self) -> None:
        """Wait for the end of threads that were killed: until then they are still traced by us. The first
        thread of a process ends as the last one.

        Raises StillAttachedError when one does not end: another thread has called exec, and has its id now.
        """
        deadline = time.monotonic() + REAPING
        waiting, self.killed = self.killed, []
        while waiting and time.monotonic() < deadline:
            waiting = [tid for tid in waiting if not self._has_been_reaped(tid)]
            if waiting:
                time.sleep(50e-6)
        if waiting:
            raise StillAttachedError(f"process {self.pid}", errors.PROCESS_GONE)

    def reap_killed(self) -> None:
        """Of threads that had stopped: until they are gone the first thread's end is not told."""
        for tid in self.threads:
            if tid != self.process_of[tid]:
                ptrace.reap(tid)

    def _has_been_reaped(self, tid: int) -> bool:
        try:
            status = ptrace.wait(tid)
        except ChildProcessError:
            return True
        if status is None or os.WIFSTOPPED(status & 0xFFFF):
            return False
        if tid == self.pid:
            self.exit_status = status
        return True


@contextmanager
def stopped(pid: int, sharers: Sharers, waits: Waits) -> Iterator[Stop]:
    """All threads of the process and of its `sharers` stopped; released on the way out, whatever happened.
    `waits` is what earlier stops have seen of them.

    Call it from one OS thread only. Raises TargetError: gone, traced by somebody else, not permitted,
    THREAD_STUCK when a thread does not come out of the kernel in `PATIENCE` seconds.
    """
    stop = Stop(pid, waits)
    try:
        _stop_all(stop, sharers)
        yield stop
    finally:
        release(stop)


def _stop_all(stop: Stop, sharers: Sharers) -> None:
    deadline = time.monotonic() + PATIENCE
    while not _try_to_stop_all(stop, sharers, deadline):
        pass
    stop.waits.keep(stop.threads)
    stop.check_alive()


def _try_to_stop_all(stop: Stop, sharers: Sharers, deadline: float) -> bool:
    """Stop thread after thread until no new one appears, nor a process in the same memory.

    False, with all let go, when a thread slept in the kernel without interruption for `LONGEST_PAUSE`: the
    parent of a vfork does until its child, which runs in the same memory, has called exec.
    """
    seized: set[int] = set()
    began = time.monotonic()
    while True:
        fresh: list[int] = []
        try:
            with rescue.attaching(stop.process_of):
                for process in (stop.pid, *sharers.known):
                    for tid in procfs.threads(process) if process == stop.pid else _threads_or_none(process):
                        if tid not in seized and _seize(stop, process, tid):
                            stop.process_of[tid] = process
                            fresh.append(tid)
        except BaseException:
            # Only a stopped thread can be detached: those that were seized already would stay ours.
            _interrupt(fresh)
            _let_go(stop, fresh, deadline)
            raise
        if not fresh:
            if not stop.own or not sharers.look(stop.threads):
                return True
            continue
        seized.update(fresh)
        _interrupt(fresh)
        try:
            stuck = _await(stop, fresh, began + LONGEST_PAUSE)
            while (
                stuck and not any(_state(stop, tid) == "D" for tid in stuck) and time.monotonic() < deadline
            ):
                # Only the CPU is missing, and they get it sooner while the others are stopped.
                stuck = _await(stop, stuck, min(time.monotonic() + LONGEST_PAUSE, deadline))
        except BaseException:
            _let_go(stop, [tid for tid in fresh if tid not in stop.threads], deadline)
            raise
        if stuck:
            release(stop)
            _let_go(stop, stuck, deadline)
            return False
        sharers.known -= _detach_strangers(stop, fresh)


def _threads_or_none(process: int) -> list[int]:
    """Of a process that may have ended."""
    try:
        return procfs.threads(process)
    except TargetError:
        return []


def _detach_strangers(stop: Stop, tids: Iterable[int]) -> set[int]:
    """Let go of threads that have executed another program since they were found; their processes."""
    own = stop.own
    strangers: set[int] = set()
    for tid in tids:
        process = stop.process_of[tid]
        is_sharer = process != stop.pid and own and tid in stop.threads
        if is_sharer and not procfs.share_memory(own[0].tid, tid):
            strangers.add(process)
            _detach(stop, stop.threads.pop(tid))
    return strangers


def _interrupt(tids: Iterable[int]) -> None:
    for tid in tids:
        with suppress(ProcessLookupError):  # ended, and reaped by the kernel: SIGCHLD is ignored
            ptrace.call(Request.INTERRUPT, tid)


def _let_go(stop: Stop, tids: list[int], deadline: float) -> None:
    """Detach threads that were asked to stop, when they have; raises TargetError THREAD_STUCK."""
    still = _await(stop, tids, deadline)
    release(stop)
    if still:
        names = ", ".join(f"{tid} ({_state(stop, tid)})" for tid in still[:4])
        others = sharing(still[0], all_processes()) - {stop.pid}
        if others:  # a child of vfork, most likely
            names += f"; its memory is used by process {', '.join(map(str, sorted(others)))}, too"
        raise StillAttachedError(f"process {stop.pid}", errors.THREAD_STUCK, f"thread {names}")


def _state(stop: Stop, tid: int) -> str:
    """The state letter of a thread; D: it sleeps in the kernel without interruption."""
    return procfs.thread_state(stop.process_of[tid], tid)


def _seize(stop: Stop, process: int, tid: int) -> bool:
    """Attach; False for a thread that has ended."""
    for attempt in range(ATTEMPTS):
        try:
            ptrace.seize(tid, Option.SYSGOOD)
            return True
        except ProcessLookupError:
            return False
        except PermissionError as error:
            if procfs.thread_state(process, tid) in "ZX":
                return False
            tracer = procfs.read_status(tid).tracer
            if tracer == threading.get_native_id():  # its id was another's, which ended when it called exec
                raise StillAttachedError(f"process {process}", errors.PROCESS_GONE) from error
            # A thread that had ended when it was asked for can have given its id away in the same manner.
            if attempt == ATTEMPTS - 1 or tracer:
                subject = f"process {process}"
                if process != stop.pid:
                    subject += f", which runs in the memory of process {stop.pid}"
                reason = errors.ALREADY_TRACED if tracer else errors.NO_PERMISSION
                raise TargetError(subject, reason, f"pid {tracer}" if tracer else "") from error
    raise AssertionError


def _await(stop: Stop, tids: list[int], deadline: float) -> list[int]:
    """Wait until the threads have stopped or ended; returns those that had not by the deadline."""
    waiting = list(tids)
    turns = 0
    while waiting := [tid for tid in waiting if not _arrived(stop, tid)]:
        turns += 1
        if turns > 50:
            if turns % 50 == 0:
                stop.reap_killed()
                waiting = [tid for tid in waiting if _is_traced_here(tid)]
            time.sleep(50e-6 if turns < 1000 else 1e-3)
        else:
            os.sched_yield()
        if time.monotonic() > deadline:
            break
    return waiting


def _is_traced_here(tid: int) -> bool:
    """Whether the calling OS thread traces it. One that called exec can have the id of another, and can be
    waited for as well if that is a child of this process."""
    try:
        return procfs.read_status(tid).tracer == threading.get_native_id()
    except TargetError:
        return False


def _arrived(stop: Stop, tid: int) -> bool:
    """True when the thread has stopped or ended."""
    try:
        status = ptrace.wait(tid)
    except ChildProcessError:
        return True
    if status is None:
        return False
    if not os.WIFSTOPPED(status & 0xFFFF):
        if tid == stop.pid:
            stop.exit_status = status
        return True
    if ptrace.event_of(status) == Event.STOP:
        stop.threads[tid] = thread = StoppedThread(tid, stop.process_of[tid])
        try:
            hide_interruption(thread)
            stop.waits.note(tid, thread.registers)
        except ProcessLookupError:
            stop.thread_exited(tid)
        return True
    # A signal on its way: let the kernel deliver it. The requested stop comes before the handler's first
    # instruction; it is requested again, since a stop for a signal can take the place of the one that was.
    signal_number = os.WSTOPSIG(status & 0xFFFF) if status >> 16 == 0 else 0
    try:
        ptrace.call(Request.INTERRUPT, tid)
        ptrace.call(Request.CONT, tid, 0, signal_number & 0x7F)
    except ProcessLookupError:
        return True
    return False


def hide_interruption(thread: StoppedThread) -> None:
    """Turn the EINTR of a call that is never restarted into one that is (kernel: arch_do_signal_or_restart).

    At once, so that the controller's death later in the stop does not let it through. A call that would be
    resumed by restart_syscall(2) is made to begin anew where that is the same: then it stays what it is, for
    whoever has to restore the thread.
    """
    registers = thread.registers
    interrupted = registers.rax == EINTR and registers.orig_rax in NEVER_RESTARTED
    if interrupted or may_begin_anew(registers):
        registers.rax = ERESTARTNOHAND
        ptrace.set_registers(thread.tid, registers)


def _detach(stop: Stop, thread: StoppedThread) -> None:
    try:
        thread.write_back()
        ptrace.call(Request.DETACH, thread.tid)
    except ProcessLookupError:
        stop.thread_exited(thread.tid)


def release(stop: Stop) -> None:
    """Write changed registers and detach every thread; threads that died meanwhile are reaped.

    Raises StillAttachedError, when all others are detached, for one that cannot be.
    """
    failed: OSError | None = None
    for thread in list(stop.threads.values()):
        try:
            _detach(stop, thread)
        except OSError as error:
            failed = error
    stop.threads.clear()
    stop.reap()
    if failed is not None:
        raise StillAttachedError(f"process {stop.pid}", errors.NOT_LET_GO, str(failed)) from failed
