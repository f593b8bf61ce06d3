"""What trace and count have in common: a target with its probes, from attaching to the last word.

Whatever ends the run (a signal, the time, the limit, the end of the target, a reader that left, an error),
the target is restored before anything else happens, and only then the summary is written.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TextIO, TypeAlias

from sidestep.cli.figures import Figures
from sidestep.cli.interrupt import Interrupt
from sidestep.cli.options import choose_pid
from sidestep.cli.output import OutputClosedError, os_error, plural, result_stream, say, silence
from sidestep.cli.plan import Plan
from sidestep.cli.progress import Progress
from sidestep.errors import (
    NO_SUCH_MODULE,
    NO_SUCH_SYMBOL,
    PROCESS_GONE,
    ProbeError,
    SidestepError,
    TargetError,
)

if TYPE_CHECKING:
    from sidestep.kprobes.texts import Batch
    from sidestep.session import Exit, Target

Ending: TypeAlias = Literal["signal", "duration", "limit", "target", "exec", "output"]

NOT_EXECUTABLE, NOT_FOUND, SIGNALLED = 126, 127, 128
"""Exit codes of shells: of a command that cannot be run, and the base for one that a signal ended."""

_NOT_FOUND = (NO_SUCH_SYMBOL, NO_SUCH_MODULE)
_MOST_THREADS = 8
_EXAMPLES = 3
"""Names shown for each reason of a refusal."""


class Run:
    """A target with its probes while they are armed."""

    def __init__(
        self, plan: Plan, target: Target, batch: Batch, interrupt: Interrupt, stream: TextIO
    ) -> None:
        self.plan, self.target, self.batch = plan, target, batch
        self.interrupt, self.stream = interrupt, stream
        self.started = time.monotonic()
        self.seconds = 0.0
        """How long the probes were armed; set at the end."""
        self.ended: Ending = "signal"
        self.executed = ""
        """The program that has replaced the target, where the run ended by that ("exec")."""

    def left(self, at_most: float) -> float:
        """Seconds to sleep: `at_most`, or less where the duration ends before."""
        if self.plan.duration is None:
            return at_most
        return max(min(at_most, self.started + self.plan.duration - time.monotonic()), 0.0)

    @property
    def overdue(self) -> bool:
        """Whether somebody waits for the end: a signal came, or the duration is over."""
        return self.interrupt.requested or (self.plan.duration is not None and self.left(1.0) <= 0)

    def ending(self, counted: int) -> Ending | None:
        """Why the run should end now, if it should; `counted` is what --limit is about."""
        if self.interrupt.requested:
            return "signal"
        if self.plan.limit is not None and counted >= self.plan.limit:
            return "limit"
        if not self.target.alive:
            return self.end_of_target()
        if self.plan.duration is not None and self.left(1.0) <= 0:
            return "duration"
        return None

    def end_of_target(self) -> Ending:
        """Whether it has ended, or executed another program."""
        self.executed = self.target.executed or ""
        return "exec" if self.executed else "target"

    def figures(self) -> Figures:
        return Figures.read(self.batch.probes, filtered=self.plan.filtered)


Register: TypeAlias = Callable[["Target", Progress], "Batch"]
Watch: TypeAlias = Callable[[Run], Ending]
Report: TypeAlias = Callable[[Run], None]


def execute(plan: Plan, register: Register, watch: Watch, report: Report) -> int:
    """Runs it all; returns the exit code.

    `register` places the probes, `watch` shows what they see until the run should end, `report` writes the
    summary when the target is restored.
    """
    with (
        Interrupt() as interrupt,
        result_stream(plan.output, launched=plan.choice.launched) as stream,
    ):
        if plan.is_last:
            interrupt.is_last()
        target = _open(plan)
        if isinstance(target, int):
            return target
        run = _start(plan, target, register, interrupt, stream)
        failure = _watch_and_restore(run, watch)
        if run.ended != "output":
            failure = _report(run, report) or failure
        return _last_word(run, failure)


def _open(plan: Plan) -> Target | int:
    """The target, or the exit code where the command to launch cannot be run."""
    from sidestep import attach, launch

    choice = plan.choice
    if choice.command is None:
        return attach(choose_pid(choice.pid, choice.name), allow_seccomp=plan.allow_seccomp)
    try:
        return launch(list(choice.command))
    except FileNotFoundError:
        say(f"{choice.command[0]}: command not found")
        return NOT_FOUND
    except (PermissionError, OSError) as error:
        say(f"{choice.command[0]}: {error.strerror}")
        return NOT_EXECUTABLE


def _start(plan: Plan, target: Target, register: Register, interrupt: Interrupt, stream: TextIO) -> Run:
    """Places the probes and lets a launched command go; whatever fails, the target is left as it was."""
    try:
        with Progress(interrupt.check) as progress:
            batch = register(target, progress)
        say_refused(batch, plan)
        say_missing_thread(target.pid, plan.tid)
        run = Run(plan, target, batch, interrupt, stream)
        if plan.choice.launched:
            target.resume()
        return run
    except BaseException as error:
        # Whoever places probes takes them out again when that fails, or is given up.
        gone = isinstance(error, OSError) and not target.alive
        _abandon(target, launched=plan.choice.launched)
        if gone:
            raise TargetError(f"process {target.pid}", PROCESS_GONE) from error
        if plan.choice.launched and isinstance(error, ProbeError) and error.reason in _NOT_FOUND:
            where = f"only {target.name}, which is launched, and its libraries are looked at"
            raise ProbeError(error.subject, error.reason, f"{error.detail}; {where}") from None
        raise


def _abandon(target: Target, *, launched: bool) -> None:
    """Ends a launched command, which has not run yet; leaves a process that was attached to."""
    if launched:
        with contextlib.suppress(ProcessLookupError):
            os.kill(target.pid, signal.SIGKILL)
    with contextlib.suppress(SidestepError, OSError):
        target.detach()
    if launched:
        target.wait(1.0)


def _watch_and_restore(run: Run, watch: Watch) -> SidestepError | OSError | None:
    """The error that the watching or the detaching met, once the target is restored."""
    failure: SidestepError | OSError | None = None
    try:
        run.ended = watch(run)
    except OutputClosedError:
        run.ended = "output"
    except SidestepError as error:
        run.ended, failure = run.end_of_target(), error
    except OSError as error:  # a full disk, say
        run.ended, failure = "output", error
        silence(run.stream)
    finally:
        run.seconds = time.monotonic() - run.started
        try:
            run.target.detach()
        except SidestepError as error:
            failure = failure or error
    return failure


def _report(run: Run, report: Report) -> OSError | None:
    try:
        report(run)
    except OutputClosedError:
        run.ended = "output"
    except OSError as error:
        silence(run.stream)
        return error
    return None


def _last_word(run: Run, failure: SidestepError | OSError | None) -> int:
    """The exit code, when a launched command has ended, too."""
    if failure is not None:
        say(os_error(failure, run.plan.output) if isinstance(failure, OSError) else str(failure))
    if run.executed:
        hint = "\n  to probe that, give it as the command itself" if run.plan.choice.launched else ""
        say(
            f"process {run.target.pid} ({run.target.name}) has executed another program ({run.executed}): "
            f"probes end with an exec{hint}"
        )
    if run.plan.choice.launched:
        return _pass_on(run)
    ending = run.target.wait(0) if run.ended == "target" else None
    if ending is not None:
        say(f"process {run.target.pid} {describe(ending)}")
        if ending.signal or ending.code:
            return 1
    return 1 if failure is not None else 0


def _pass_on(run: Run) -> int:
    """Waits for the launched command, which runs on without probes, and gives its exit code as a shell would.

    A SIGTERM (SIGHUP, SIGQUIT) that ended the run is meant for the command as well; a Ctrl-C has reached it
    already. Another signal while waiting ends the waiting: the command is left alone.
    """
    target, interrupt = run.target, run.interrupt
    if interrupt.signal is not None and interrupt.signal != signal.SIGINT and target.alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(target.pid, interrupt.signal)
    interrupt.rearm()
    while True:
        ending = target.wait(0.0)
        if ending is not None:
            return SIGNALLED + ending.signal if ending.signal else ending.code or 0
        if interrupt.wait(0.05):
            return SIGNALLED + (interrupt.signal or 0)


def describe(ending: Exit) -> str:
    """`exited with code 3`, `was killed by SIGSEGV`."""
    if ending.signal:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(ending.signal).name}"
        return f"was killed by signal {ending.signal}"
    return "exited" if ending.code is None else f"exited with code {ending.code}"


def say_missing_thread(pid: int, tid: int | None) -> None:
    """That no thread has the id that --tid gives: it may be one to come, or of a child, or an error."""
    from sidestep.target.process import procfs

    threads = sorted(procfs.own_threads(pid)) if tid is not None else []
    if tid is not None and tid not in threads:
        listed = ", ".join(map(str, threads[:_MOST_THREADS]))
        more = f" and {len(threads) - _MOST_THREADS} more" if len(threads) > _MOST_THREADS else ""
        say(f"process {pid} has no thread {tid} now, its threads are {listed}{more}")


def say_refused(batch: Batch, plan: Plan) -> None:
    """How many of the functions of a glob could not be probed, and why, on standard error."""
    if not batch.refused:
        return
    total = len(batch.refused) + len(batch.probes)
    counts = Counter(each.refusal.reason for each in batch.refused)
    lines = [f"{len(batch.refused):,} of {plural(total, 'function')} cannot be probed:"]
    for reason, count in counts.most_common():
        names = [each.probe for each in batch.refused if each.refusal.reason is reason]
        examples = ", ".join(names[:_EXAMPLES]) + (", ..." if count > _EXAMPLES else "")
        lines.append(f"  {count:>7,}  {reason.name}: {reason.sentence} ({examples})")
    say("\n".join(lines))
