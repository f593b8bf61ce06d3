"""Probes come and go, in batches, in functions that sixteen threads hammer: `python -m endurance.arm_cycles`.

One cycle is one probe that is armed and disarmed. What is checked:

* the program checks each result itself, and ends as it does without probes;
* probes that stay, at the entries of functions in which the others come and go, count every call;
* of two probes that come and go together at one address, both have the same hits;
* afterwards the process has its own bytes and nothing else.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import sidestep
from harness.build import Builder
from harness.programs import counts, run_until_done
from harness.running import Running
from harness.stepper import disassemble
from harness.untouched import read_state, remains
from sidestep.errors import Refusal

PROGRAM = "hammered"
STAYING = ("called", "f_000", "f_011", "f_022", "f_033", "f_130", "f_221", "f_312", "f_323")
INSTRUCTIONS = 4  # of each function: those that share a region with its entry, and some behind it
NICE = 19  # of the program: its sixteen threads take what is left
PAIRS = 8  # addresses of a batch that get two probes


@dataclass(frozen=True, slots=True)
class Done:
    """What was done: `hits` are those of the probes that came and went, in seconds `lasted`."""

    cycles: int
    hits: int
    calls: int
    lasted: float


def functions() -> set[str]:
    digits = "0123"
    return {f"f_{a}{b}{c}" for a in digits for b in digits for c in digits} | {"called"}


def place_addresses(target: sidestep.Target, program: Path) -> list[int]:
    """Where probes can come and go: the first instructions of each function."""
    found = []
    taken: dict[str, int] = {}
    for instruction in disassemble(program, functions()):
        taken[instruction.function] = taken.get(instruction.function, 0) + 1
        if taken[instruction.function] <= INSTRUCTIONS:
            (checked,) = target.check(f"{PROGRAM}:{instruction.function}+{instruction.offset:#x}")
            if not isinstance(checked.verdict, Refusal):
                found.append(checked.location.address)
    return found


def arm_cycles(
    program: Path,
    folder: Path,
    cycles: int,
    batch: int,
    tell: Callable[[int, float], None] = lambda done, seconds: None,
    time_limit: float = 60.0,
) -> Done:
    """Runs at least so many cycles, `batch` of them at a time. Raises AssertionError for what is wrong."""
    choice = random.Random(cycles)
    with Running([program, "0", "wait"], folder=folder, time_limit=time_limit) as running:
        running.expect("ready")
        os.setpriority(os.PRIO_PROCESS, running.pid, NICE)
        before = read_state(running.pid)
        done = hits = 0
        with sidestep.attach(running.pid) as target:
            staying = target.count(*(f"{PROGRAM}:{name}" for name in STAYING)).probes
            places = place_addresses(target, program)
            running.send()
            began = time.monotonic()
            while done < cycles:
                addresses = choice.sample(places, min(batch - PAIRS, len(places)))
                probes = [sidestep.Kprobe(addr=address) for address in (*addresses, *addresses[:PAIRS])]
                target.register_kprobes(probes)
                target.unregister_kprobes(probes)
                pairs = zip(probes[:PAIRS], probes[-PAIRS:], strict=True)
                assert all(one.hits == other.hits for one, other in pairs), "two probes at one address differ"
                hits += sum(probe.hits for probe in probes)
                done += len(probes)
                tell(done, time.monotonic() - began)
            lasted = time.monotonic() - began
            running.send()
            run_until_done(running)
            counted = {name: probe.hits for name, probe in zip(STAYING, staying, strict=True)}
        assert not remains(before, read_state(running.pid))
        running.send()
        outcome = running.finish()
    true = counts(outcome)
    assert outcome.status == 0, str(outcome)
    assert "wrong 0" in outcome.output.splitlines(), str(outcome)
    assert counted == {name: true[name] for name in STAYING}
    assert hits > 0
    return Done(done, hits, sum(true.values()), lasted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cycles", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--time-limit", type=float, default=24 * 3600.0, help="seconds")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))

    told = 0

    def tell(done: int, seconds: float) -> None:
        nonlocal told
        if done - told >= 10_000:
            told = done
            print(f"{done:,} cycles in {seconds:,.0f} s", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as folder:
        program = Builder(Path(folder))(PROGRAM)
        done = arm_cycles(program, Path(folder), options.cycles, options.batch, tell, options.time_limit)
    print(f"{done.cycles:,} cycles in {done.lasted:,.0f} s, {done.cycles / done.lasted:,.0f} a second")
    print(f"{done.hits:,} hits of the probes that came and went; {done.calls:,} calls by the program's own")
    print("count; nothing lost, nothing left")


if __name__ == "__main__":
    main()
