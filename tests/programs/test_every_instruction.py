"""A probe on every instruction of a program's functions counts what single steps count."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harness.build import Builder
from harness.probing import attached
from harness.programs import comparable, counts, place, run_until_done
from harness.running import Outcome, Running
from harness.stepper import Instruction, count_arrivals, disassemble

Run = Callable[..., Running]
Bare = Callable[..., Outcome]

# Programs of one thread that do not look at the trap flag, and the SIZE that takes a second in single steps.
SIZES = {
    "abi": 20, "args": 20, "backtrace": 1, "cold": 200, "computed_goto": 20, "count": 20, "crossjump": 20,
    "cxx": 20, "data_in_text": 20, "direction": 20, "endbr": 20, "exceptions": 1, "fault": 20,
    "fault_backtrace": 5, "fault_throw": 5, "faults": 4, "faults_later": 4, "handlers": 20, "indirect": 20,
    "jit": 20, "longjmp": 5, "loop_jrcxz": 20, "loops": 3, "neighbours": 20, "page_end": 20, "redzone": 20,
    "rep": 10, "ret_imm16": 20, "riprel": 20, "sigaltstack": 10, "sse": 20, "stackalign": 20, "switch": 40,
    "syscall_loop": 20, "tailcall": 20, "tiny": 20, "variadic": 20, "vectors": 5, "x87": 20,
}  # fmt: skip


def steps(run: Run, program: Path, size: int, instructions: list[Instruction]) -> dict[int, int]:
    running = run(program, str(size), "wait")
    running.expect("ready")

    def release() -> None:
        running.send()
        running.send()

    arrivals = count_arrivals(running.pid, program, instructions, release)
    return {instruction.address: arrivals[instruction.address] for instruction in instructions}


@pytest.mark.parametrize("name", SIZES)
def test_every_instruction_is_counted(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare, name: str
) -> None:
    """All at once: each probe lies inside the regions of the ones before it."""
    program, size = build(name), SIZES[name]
    expected = bare(name, size)
    instructions = disassemble(program, set(counts(expected)))
    true = steps(run, program, size, instructions)
    running = run(program, str(size), "wait")
    running.expect("ready")
    probes: dict[int, Any] = {}
    refused: list[str] = []
    with attached(sidestep, running.pid) as target:
        for instruction in instructions:
            try:
                batch = target.count(place(name, instruction.function, instruction.offset))
            except sidestep.ProbeError as error:
                refused.append(f"{instruction.function}+{instruction.offset:#x}: {error.reason.name}")
            else:
                (probes[instruction.address],) = batch.probes
        running.send()
        run_until_done(running)
        hits = {address: probe.hits for address, probe in probes.items()}
    running.send()
    outcome = running.finish()
    assert comparable(outcome) == comparable(expected), str(outcome)
    wrong = [
        f"{instruction.function}+{instruction.offset:#x} {instruction.text}: "
        f"{hits[instruction.address]} hits, {true[instruction.address]} steps"
        for instruction in instructions
        if instruction.address in hits and hits[instruction.address] != true[instruction.address]
    ]
    assert not wrong, "\n".join([*wrong, "refused:", *refused])
    assert hits, "\n".join(["every instruction was refused:", *refused])
