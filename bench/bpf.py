"""The same work as handlers.py's, done by bpftrace with kernel uprobes. Needs root and bpftrace."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator

from victims import Victim, program

ATTACHING = 60.0  # seconds
PROGRAMS = {
    "c_counter": "{ @ = count(); }",
    "c_histogram": "{ @ = hist(arg0); }",
    "c_hash": "{ @[arg0 % 1000] = count(); }",
    "c_filter": "/ arg0 > 0x1000000000000000 / { @ = count(); }",
}
"""By the function of the victim that does the same in C."""


def is_there() -> bool:
    """Whether it can be used here: installed, and allowed."""
    return os.geteuid() == 0 and shutil.which("bpftrace") is not None


@contextlib.contextmanager
def traced(same: str, victim: Victim, function: str, hits: int | None = None) -> Iterator[None]:
    """What PROGRAMS has for `same`, at the victim's function, which the `with` calls so many times: a counter
    must have seen all. RuntimeError where bpftrace does not start."""
    text = f'uprobe:{program()}:{function} {PROGRAMS[same]} interval:ms:50 {{ printf("ready\\n"); }}'
    command = ["bpftrace", "-f", "json", "-B", "line", "-p", str(victim.pid), "-e", text]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        _wait_for_ready(process)
        yield
    finally:
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=ATTACHING)
    if process.returncode:
        raise RuntimeError(f"bpftrace: {errors}")
    if hits is not None and same == "c_counter":
        counted = _total(output)
        assert counted == hits, f"bpftrace counted {counted} of {hits}"


def _wait_for_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    deadline = time.monotonic() + ATTACHING
    while "ready" not in (line := process.stdout.readline()):
        if not line or time.monotonic() > deadline:
            raise RuntimeError(f"bpftrace did not start: {process.communicate()[1]}")


def _total(output: str) -> int:
    found = [json.loads(line) for line in output.splitlines() if '"map"' in line]
    return sum(int(each["data"]["@"]) for each in found)
