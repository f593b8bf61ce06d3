"""Controllers come and go on a program whose threads work all the time: `python -m endurance.attach_cycles`.

Attach, count and record, detach: at the end neither side has more memory, descriptors, threads or mappings
than after the first cycles, and the program ends as it does without probes.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import sidestep
from endurance.arm_cycles import NICE, PROGRAM
from harness.build import Builder
from harness.programs import run_until_done
from harness.running import Running
from harness.untouched import read_areas, read_state, remains

COUNTED = ("called", "f_000", "f_013", "f_121", "f_232")
RECORDED = "f_333 a=$arg1:s64 if a == -1"  # never: what nobody reads would only be memory
ALLOWED_GROWTH = 8 << 20  # bytes: an allocator is never quite at rest


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a process has: bytes of memory of its own, and numbers of other things."""

    memory: int
    descriptors: int
    threads: int
    mappings: int

    def __str__(self) -> str:
        rest = f"{self.descriptors} descriptors, {self.threads} threads, {self.mappings} mappings"
        return f"{self.memory >> 10:,} KiB, {rest}"


def holdings(pid: int) -> Holdings:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what is free is given back, also by the arenas of threads that ended
    process = Path(f"/proc/{pid}")
    rollup = (process / "smaps_rollup").read_text().splitlines()
    memory = sum(int(line.split()[1]) << 10 for line in rollup if line.startswith("Private_Dirty:"))
    counts = (len(os.listdir(process / name)) for name in ("fd", "task"))
    return Holdings(memory, *counts, len(read_areas(pid)))


@dataclass(frozen=True, slots=True)
class Done:
    """What both sides had after the first cycles and at the end; seconds."""

    cycles: int
    lasted: float
    controller: tuple[Holdings, Holdings]
    target: tuple[Holdings, Holdings]


def attach_cycles(program: Path, folder: Path, cycles: int, time_limit: float = 60.0) -> Done:
    """Raises AssertionError for what is wrong."""
    with Running([program, "0", "wait"], folder=folder, time_limit=time_limit) as running:
        running.expect("ready")
        os.setpriority(os.PRIO_PROCESS, running.pid, NICE)
        before = read_state(running.pid)
        running.send()
        began = time.monotonic()
        first: tuple[Holdings, Holdings] | None = None
        for cycle in range(cycles):
            with sidestep.attach(running.pid) as target:
                target.count(*(f"{PROGRAM}:{name}" for name in COUNTED))
                target.trace(f"{PROGRAM}:{RECORDED}")
            if cycle == cycles // 4:
                first = holdings(os.getpid()), holdings(running.pid)
        last = holdings(os.getpid()), holdings(running.pid)
        lasted = time.monotonic() - began
        running.send()
        run_until_done(running)
        assert not remains(before, read_state(running.pid))
        running.send()
        outcome = running.finish()
    assert outcome.status == 0, str(outcome)
    assert "wrong 0" in outcome.output.splitlines(), str(outcome)
    assert first is not None
    for then, now in zip(first, last, strict=True):
        assert now.memory - then.memory < ALLOWED_GROWTH, f"{then} became {now}"
        assert now.descriptors - then.descriptors < cycles // 4, f"{then} became {now}"
        assert now.threads - then.threads < cycles // 4, f"{then} became {now}"
        assert now.mappings - then.mappings < cycles // 4, f"{then} became {now}"
    return Done(cycles, lasted, (first[0], last[0]), (first[1], last[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cycles", type=int, default=1_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = Builder(Path(folder))(PROGRAM)
        done = attach_cycles(program, Path(folder), options.cycles, time_limit=24 * 3600.0)
    print(f"{done.cycles:,} cycles in {done.lasted:,.0f} s; after a quarter of them, and at the end:")
    for name, (first, last) in (("controller", done.controller), ("target", done.target)):
        print(f"{name}: {first}; {last}")


if __name__ == "__main__":
    main()
