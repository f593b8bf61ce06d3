"""Kernel uprobes through tracefs, to compare with. Needs root; everything is taken out again."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

TRACING = Path("/sys/kernel/tracing")
GROUP = "sidestep_bench"
INSTANCE = TRACING / "instances" / GROUP  # a trace buffer of our own


@contextlib.contextmanager
def mounted() -> Iterator[bool]:
    """Whether uprobes can be used; mounts tracefs for the time of the `with` where it is not."""
    if os.geteuid() != 0:
        yield False
        return
    ours = not (TRACING / "uprobe_events").exists()
    if ours and subprocess.run(["mount", "-t", "tracefs", "nodev", str(TRACING)], check=False).returncode:
        yield False
        return
    try:
        if not (TRACING / "uprobe_events").exists():
            yield False
            return
        _clear()
        INSTANCE.mkdir(exist_ok=True)
        try:
            yield True
        finally:
            _clear()
            INSTANCE.rmdir()
    finally:
        if ours:
            subprocess.run(["umount", str(TRACING)], check=False)


@contextlib.contextmanager
def uprobe(pid: int, address: int, arguments: str = "", condition: str = "") -> Iterator[None]:
    """An event at a run-time address of a process, recorded (or with a `condition` that fails, rejected)."""
    path, offset = _in_file(pid, address)
    _write(TRACING / "uprobe_events", f"p:{GROUP}/hit {path}:{offset:#x} {arguments}\n")
    event = INSTANCE / "events" / GROUP / "hit"
    try:
        _write(INSTANCE / "trace_clock", "mono")
        if condition:
            _write(event / "filter", condition)
        _write(event / "enable", "1")
        yield
    finally:
        _clear()


def hits() -> int:
    """How often the uprobe was hit."""
    lines = (TRACING / "uprobe_profile").read_text().splitlines()
    return sum(int(line.split()[2]) for line in lines if line.split()[1] == "hit")


def _in_file(pid: int, address: int) -> tuple[str, int]:
    """The file that is mapped at an address, and the offset in it."""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, _, offset, _, inode, *path = line.split(maxsplit=5)
        start, end = (int(number, 16) for number in span.split("-"))
        if start <= address < end and inode != "0":
            return path[0].strip(), address - start + int(offset, 16)
    raise ValueError(f"no file is mapped at {address:#x}")


def _clear() -> None:
    """Remove our event, which may be what an earlier run left."""
    if f"{GROUP}/hit" not in (TRACING / "uprobe_events").read_text():
        return
    enable = INSTANCE / "events" / GROUP / "hit" / "enable"
    if enable.exists():
        _write(enable, "0")
    _write(TRACING / "uprobe_events", f"-:{GROUP}/hit\n")


def _write(path: Path, content: str) -> None:
    """One write, without the seek that Python's append mode makes and tracefs refuses."""
    descriptor = os.open(path, os.O_WRONLY | (os.O_APPEND if path.name == "uprobe_events" else 0))
    try:
        os.write(descriptor, content.encode())
    finally:
        os.close(descriptor)
