"""From the shell to the first hit of `sidestep count`, and the memory that the command takes.

The victim calls the function all the time and notes when its code changes: the next call is the first hit.
Users have bytecode caches, so a first run that fills one is not counted. It is kept in build/bench, even if
PYTHONDONTWRITEBYTECODE is set.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import many
from figures import Effort, Row, main, of
from victims import BUILD, HERE, Victim, program, use_other_cpus

MILLIONS = 1 << 20
LARGE = 21  # turns of each of 10,000 functions: 5 MB of code
CACHE = BUILD / "cache"  # what Sidestep keeps about large files, here only for the measurement
FUNCTION = "many_05003"


def environment() -> dict[str, str]:
    """With bytecode kept in a place of our own, and the product from this checkout."""
    path = os.environ.get("PYTHONPATH")
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {
        **kept,
        "PYTHONPATH": str(HERE.parent / "src") + (f":{path}" if path else ""),
        "PYTHONPYCACHEPREFIX": str(BUILD / "bytecode"),
        "XDG_CACHE_HOME": str(CACHE),
    }


@dataclass(frozen=True, slots=True)
class Started:
    """One run of `sidestep count`: milliseconds to the first hit, and the most memory it had, in bytes."""

    first: float
    memory: int


def count(victim: Victim, where: str, function: str, variables: Mapping[str, str]) -> Started:
    """Runs `sidestep count` on a victim that calls the function, until after the first hit."""
    words = [sys.executable, "-m", "sidestep", "count", "--format", "json", "-p", str(victim.pid), where]
    victim.tell("first", function)
    time.sleep(0.05)
    began = time.monotonic()
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=variables) as command:
        try:
            first = int(victim.wait_for(command)[0][0]) / 1e9 - began
            memory = _most_memory(command.pid)
            command.send_signal(signal.SIGINT)
            output, _ = command.communicate(timeout=60)
        finally:
            command.kill()
    summary = json.loads(output.splitlines()[-1])
    assert summary["probes"][0]["hits"] >= 1, summary
    return Started(1e3 * first, memory)


def _most_memory(pid: int) -> int:
    """The most that was resident up to now; wait4() would count this process's own memory before the exec."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("no VmHWM")


def first_hits(effort: Effort) -> Iterator[Row]:
    """`sidestep count` from its start on, for a function of libc and one of a library of 5 MB."""
    libraries = {
        "libc:malloc": ("malloc", None),
        "a function of a library with 5 MB of code": (FUNCTION, many.build(BUILD, 10_000, LARGE)),
    }
    variables = environment()
    for what, (function, library) in libraries.items():
        new: list[Started] = []
        known: list[Started] = []
        where = f"libmany*:{function}" if library else what
        for repetition in range(effort.repetitions + 1):
            shutil.rmtree(CACHE, ignore_errors=True)
            runs = []
            for _ in range(2):
                with Victim(library, pinned=True) as victim:
                    runs.append(count(victim, where, function, variables))
            if repetition:  # the first filled the bytecode cache
                new.append(runs[0])
                known.append(runs[1])
        yield of(f"start: first hit, {what}, analysed before", [run.first for run in known], "ms", 400)
        yield of(f"start: first hit, {what}, not analysed before", [run.first for run in new], "ms", 400)
        yield of(f"start: controller's memory, {what}", [run.memory / MILLIONS for run in new], "MB", 80)


def floor(effort: Effort) -> Iterator[Row]:
    """What Python itself takes, with the same bytecode cache."""
    code = {"python": "pass", "python with typer": "import typer"}
    for what, words in code.items():
        times = []
        for _ in range(effort.repetitions + 1):
            began = time.monotonic()
            subprocess.run([sys.executable, "-c", words], env=environment(), check=True)
            times.append(1e3 * (time.monotonic() - began))
        yield of(f"floor: {what}, start to end", times[1:], "ms")


def measure(effort: Effort) -> Iterator[Row]:
    program()
    use_other_cpus()
    yield from floor(effort)
    yield from first_hits(effort)


if __name__ == "__main__":
    main("From the shell to the first hit.", measure)
