"""Ten to fifty thousand probes: what one costs must not depend on how many there are.

Each figure is what all probes need, divided by their number. What is there once (the analysis of the library
for so many probes, the shared memory) is in it: with a few probes it is most of it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import many
from figures import Effort, Row, main, of
from victims import BUILD, Victim, program, use_other_cpus

import sidestep

FUNCTIONS = 50_000
GLOBS = {
    10: "many_0000?",
    100: "many_000??",
    1_000: "many_00???",
    10_000: "many_0????",
    FUNCTIONS: "many_?????",
}
REPETITIONS_OF_ALL = 2


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds and bytes."""

    install: float
    remove: float
    controller: int
    target: int


def resident() -> int:
    """Bytes of this process's memory."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("no Rss in smaps_rollup")


def cost(glob: str) -> Cost:
    """Of the probes that the glob finds, beyond one that is there already; the target hits all of them."""
    with Victim(many.build(BUILD, FUNCTIONS)) as victim:
        victim.ask("all")
        with sidestep.attach(victim.pid) as target:
            target.count("libmany*:many_all")
            victim.ask("all")
            controller, target_before = resident(), victim.memory("Rss")
            began = time.perf_counter()
            batch = target.count(f"libmany*:{glob}")
            install = time.perf_counter() - began
            victim.ask("all")
            assert min(probe.hits for probe in batch.probes) == 1
            grown, target_grown = resident() - controller, victim.memory("Rss") - target_before
            began = time.perf_counter()
            target.unregister_kprobes(batch.probes)
            return Cost(install, time.perf_counter() - began, grown, target_grown)


def in_a_fork(glob: str) -> Cost:
    """Measured in a process of its own: memory that was used once is used again without growing."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        status = 1
        try:
            os.write(writer, json.dumps(asdict(cost(glob))).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with open(reader) as answer:
        text = answer.read()
    if os.waitpid(child, 0)[1]:
        sys.exit(f"measuring {glob} failed")
    return Cost(**json.loads(text))


def measure(effort: Effort) -> Iterator[Row]:
    program()
    many.build(BUILD, FUNCTIONS)
    use_other_cpus()
    for probes, glob in GLOBS.items():
        turns = effort.turns if probes < FUNCTIONS else range(min(effort.repetitions, REPETITIONS_OF_ALL))
        costs = [in_a_fork(glob) for _ in turns]
        microseconds = [1e6 * cost.install / probes for cost in costs]
        remove = median(1e6 * cost.remove / probes for cost in costs)
        note = f"removing {remove:,.0f} us"
        yield of(f"scale: {probes:,} probes, installing one", microseconds, "us", note=note)
        target = median(cost.target / probes for cost in costs)
        note = f"{target:,.0f} bytes in the target"
        memory = [cost.controller / probes for cost in costs]
        yield of(f"scale: {probes:,} probes, the controller's memory for one", memory, "bytes", note=note)


if __name__ == "__main__":
    main("Time and memory for one of many probes.", measure)
