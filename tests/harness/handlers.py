"""How programs run with native handlers."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import sidestep as api
from harness.build import Builder
from harness.probing import attached
from harness.programs import place, run_until_done
from harness.running import Outcome, Running
from sidestep import native

Run = Callable[..., Running]
Bare = Callable[..., Outcome]


class Maps:
    """One of each kind, and a handler that adds the first argument of each hit to all."""

    def __init__(self) -> None:
        counter, stats, powers = api.Counter(), api.Stats(), api.Histogram()
        steps = api.Histogram(linear=(0, 64, 8))
        array, table, threads = api.Array(4), api.Hash(64), api.PerThread(1024)
        self.counter, self.stats, self.powers, self.steps = counter, stats, powers, steps
        self.array, self.table, self.threads = array, table, threads

        @native
        def handler(p, regs):  # type: ignore[no-untyped-def]
            value = regs.arg(0)
            counter.add(1)
            stats.add(value)
            powers.add(value)
            steps.add(value)
            array[value & 3] += 1
            table[value & 31] += 1
            threads.add(1)

        self.handler = handler

    @property
    def totals(self) -> dict[str, int]:
        """How many hits each map has seen."""
        return {
            "counter": self.counter.value,
            "stats": self.stats.count,
            "powers": self.powers.count,
            "steps": self.steps.count,
            "array": sum(self.array.to_list()),
            "table": sum(self.table.to_dict().values()),
            "threads": sum(self.threads.to_dict().values()),
        }


def nothing_left(pid: int) -> bool:
    """Whether no memory of ours is mapped."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    foreign = [line for line in maps if re.search(r" r-xp 0+ 00:00 0 *$", line)]
    return not foreign and not any("sidestep" in line for line in maps)


def run_under(
    sidestep: ModuleType, running: Running, probe: Callable[[Any], object], while_there: Callable[[], object]
) -> Outcome:
    """A program from its first wait to its second with what `probe` registers."""
    running.expect("ready")
    with attached(sidestep, running.pid) as target:
        probe(target)
        running.send()
        run_until_done(running)
        while_there()
    assert nothing_left(running.pid)
    running.send()
    return running.finish()


WORKER = "threads"


def run_with(sidestep: ModuleType, build: Builder, run: Run, handler: Any) -> tuple[Outcome, list[Any]]:
    """The outcome of WORKER with a handler at its function `work`, and the probe."""
    probes: list[Any] = []
    outcome = run_under(
        sidestep,
        run(build(WORKER), "wait"),
        lambda target: probes.append(target.kprobe(place(WORKER, "work"))(handler)),
        lambda: None,
    )
    return outcome, probes
