"""Says where a process died or hangs: from its core file, or from /proc."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

GDB_COMMANDS = (
    "set pagination off",
    "info registers",
    "x/12i $pc-20",
    "x/16xg $rsp",
    "thread apply all backtrace 20",
    "info proc mappings",
)


def describe_core(program: Path, folder: Path, pid: int) -> str:
    """Registers, code and stacks out of the core file that `pid` left in `folder`; "" without one."""
    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    if pattern.startswith("|") or "/" in pattern:
        return f"(cores go to {pattern!r}, so there is none to look at)"
    cores = [path for path in (folder / "core", folder / f"core.{pid}") if path.exists()]
    if not cores or shutil.which("gdb") is None:
        return ""
    words = ["gdb", "-batch", "-nx"]
    for command in GDB_COMMANDS:
        words += ["-ex", command]
    try:
        done = subprocess.run(
            [*words, str(program), str(cores[0])],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    finally:
        cores[0].unlink()
    return done.stdout


def describe_process(pid: int) -> str:
    """What each thread of a process is doing, and its maps; as far as /proc can still tell."""
    parts = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        try:
            status = (task / "status").read_text()
            state = dict(re.findall(r"^(\w+):\s*(.*)$", status, re.M))
            facts = " ".join(
                f"{key}={state.get(key)}"
                for key in ("State", "SigPnd", "ShdPnd", "SigBlk", "SigCgt", "TracerPid")
            )
            parts.append(f"thread {task.name}: {facts} syscall={(task / 'syscall').read_text().strip()}")
            parts.append((task / "stack").read_text())
        except OSError:
            continue
    try:
        parts.append(Path(f"/proc/{pid}/maps").read_text())
    except OSError:
        parts.append("(the process is gone)")
    return "\n".join(parts)
