"""`sidestep demo`: a small program is launched, probed while it runs, and shown to be as it was."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from sidestep.cli.count import count
from sidestep.cli.interrupt import Interrupt
from sidestep.cli.options import Choice, Invocation
from sidestep.cli.output import reader_may_leave
from sidestep.cli.plan import Plan
from sidestep.cli.trace import trace

PROGRAM = Path(__file__).with_name("demo_program.py")
COUNT_SECONDS, TRACE_SECONDS, EVENTS = 3.0, 3.0, 12

# Those that cannot be found or placed are left out: an interpreter need not have the symbols.
COUNTED = (
    "malloc",
    "free",
    "read",
    "open64",
    "close",
    "PyList_New",
    "PyList_Append",
)
TRACED = (
    "open open64 path=+0($arg1):string",
    "read read fd=$arg1:s32 size=$arg3:u64 if size > 512",
)


def demo(context: typer.Context) -> None:
    """Launch a small program, probe it, explain it."""
    invocation: Invocation = context.obj
    invocation.refuse("demo")
    with subprocess.Popen(
        [sys.executable, "-I", str(PROGRAM)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        process_group=0,
        text=True,
    ) as program:
        try:
            code = _show(program)
        finally:
            program.kill()
    raise typer.Exit(code)


def _show(program: subprocess.Popen[str]) -> int:
    pid = program.pid
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdout.readline()  # the interpreter is through its start
    before = Code.of(pid)
    _say(
        "A look inside a running process.",
        "",
        f"1. A program runs: {PROGRAM.name}, process {pid}. It reads files, sorts words and makes lists.",
        "   It was not prepared for this in any way, and it will not be restarted.",
        "",
    )
    code = _count(pid) or _trace(pid)
    if code:
        return code
    after = Code.of(pid)
    program.stdin.close()
    rounds, _, result = program.stdout.readline().strip().partition(" ")
    status = program.wait(10)
    same = before == after
    name = started_as()
    commands = (
        (f"{name} funcs -p PID 'libc:*alloc*'", "which functions are there"),
        (f"{name} count -p PID 'libc:*alloc*'", "how often they are called"),
        (f"{name} trace 'libc:write size=$arg3:u64' -- ls", "a command from its start"),
    )
    width = max(len(command) for command, _ in commands)
    _say(
        "3. Both commands have left again. Is the program as it was?",
        "",
        f"   executable mappings   {len(before.digests)} before, {len(after.digests)} after",
        f"   bytes of code         {before.size:,}, compared with those before: {_verdict(same)}",
        f"   the program itself    {rounds} rounds, results {result}, exit code {status}",
        "",
        "   Now your own:",
        *(f"   $ {command:{width}}   {what}" for command, what in commands),
    )
    return 0 if same and status == 0 and result == "right" else 1


def _count(pid: int) -> int:
    probes = usable(pid, COUNTED)
    _command("count", pid, probes, f"--duration {COUNT_SECONDS:g}")
    code = count(Plan(Choice(pid, None), tuple(probes), duration=COUNT_SECONDS, is_last=False))
    _say(
        "",
        "   HITS is how often each function was called, to the last one. The first instructions of each were",
        "   replaced by a jump to a few new ones, which count, do what was replaced, and jump back:",
        "   a hit costs a nanosecond or two, and nobody waits for Sidestep.",
        "",
    )
    return code


def _trace(pid: int) -> int:
    probes = usable(pid, TRACED)
    _say("2. What are they called with?", "")
    _command("trace", pid, probes, f"--limit {EVENTS}")
    choice = Choice(pid, None)
    code = trace(Plan(choice, tuple(probes), duration=TRACE_SECONDS, limit=EVENTS, is_last=False))
    _say(
        "",
        "   One line a hit: task-thread, CPU, seconds, the probe, where, and what was asked for. $arg1 is",
        "   the first argument, +0($arg1):string the text that it points to; `if` chose the hits.",
        "",
    )
    return code


@dataclass(frozen=True, slots=True)
class Code:
    """The executable mappings of a process, and a digest of what each holds."""

    digests: dict[tuple[int, int, str], bytes]

    @classmethod
    def of(cls, pid: int) -> Code:
        import hashlib

        from sidestep.maps import read_maps

        digests = {}
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            for area in read_maps(pid):
                if "x" in area.perms and area.path != "[vsyscall]":
                    content = os.pread(memory.fileno(), area.end - area.start, area.start)
                    digests[area.start, area.end, area.path] = hashlib.sha256(content).digest()
        return cls(digests)

    @property
    def size(self) -> int:
        return sum(end - start for start, end, _ in self.digests)


def usable(pid: int, probes: Sequence[str]) -> list[str]:
    """Those of `probes` that can be placed in the process."""
    from sidestep import attach
    from sidestep.errors import ProbeError, Refusal

    found = []
    with Interrupt() as interrupt:
        target = attach(pid)
        try:
            for probe in probes:
                interrupt.check()
                try:
                    checked = target.check(probe)
                except ProbeError:
                    continue
                if not any(isinstance(each.verdict, Refusal) for each in checked):
                    found.append(probe)
        finally:
            target.detach()
    return found


def started_as() -> str:
    """What to type for `sidestep`: its path, where the shell would not find it."""
    script = sys.argv[0]
    if os.path.basename(script) != "sidestep":
        return f"{os.path.basename(sys.executable)} -m sidestep"
    found = shutil.which("sidestep")
    return "sidestep" if found and os.path.samefile(found, script) else script


def _verdict(same: bool) -> str:
    return "the same" if same else "DIFFERENT"


def _command(name: str, pid: int, probes: Sequence[str], option: str) -> None:
    _say(f"   $ {started_as()} {name} -p {pid} {option} " + shlex.join(probes), "")


def _say(*lines: str) -> None:
    with reader_may_leave(sys.stdout):
        print("\n".join(lines), flush=True)
