"""Instructions of real libraries, run in place and relocated from random states."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

from differential.bench import LAYOUTS, SEED, Bench
from differential.execution import FAR, Case, Layout, random_registers
from differential.harvest import Found, adapt, by_kind, streams, without_unfit
from differential.relocation import Relocated, compare_case, ended_by_int3, is_endless, relocate
from sidestep.arch.x86_64 import insn
from sidestep.arch.x86_64.relocate import region_refusal
from sidestep.errors import ProbeError

_START = 0x4000  # in the code area, in its lower half: below what branches lead to


def sequences(source: random.Random) -> Iterator[list[Found]]:
    """Some of each kind of instruction alone, then what a jump of five bytes would cover at random places."""
    found = streams(source)
    for part in by_kind(found, 4, source):
        yield [part]
    for _ in range(2500):
        stream = source.choice(found)
        index = source.randrange(len(stream) - 8)
        length = 1
        while sum(len(part.code) for part in stream[index : index + length]) < 5:
            length += 1
        yield stream[index : index + length + source.randrange(3)]


def test_relocated_code_of_libraries_does_what_the_original_does(bench: Bench) -> None:
    source = random.Random(SEED)
    cases: dict[Layout, list[tuple[Relocated, Case]]] = {layout: [] for layout in LAYOUTS.values()}
    refused: Counter[str] = Counter()
    kinds = set()
    for found in sequences(source):
        parts = without_unfit(found)
        if not parts:
            continue
        layout = source.choice(list(LAYOUTS.values()))
        address = layout.original + _START + source.randrange(0x1000)
        code = adapt(parts, address, layout, source)
        refusal = region_refusal(insn.decode(code, address))
        if refusal is not None:
            refused[refusal.detail.rpartition(": ")[2]] += 1
            continue
        try:
            relocated = relocate(address, code, layout.copy + source.randrange(0x8000))
        except ProbeError:
            assert layout is FAR
            continue
        kinds |= {part.instruction.code for part in parts}
        for start in {0, source.randrange(len(parts))}:
            registers = random_registers(source, layout)
            case = compare_case(relocated, registers, source.getrandbits(32), start=start)
            cases[layout].append((relocated, case))
    outcomes = [outcome for layout, some in cases.items() for outcome in bench.run(layout, some)]
    through = sum(ended_by_int3(result) for _, _, result in outcomes)
    endless = sum(is_endless(result) for _, _, result in outcomes)
    print(f"{len(outcomes)} runs of {len(kinds)} kinds, {through} to their end, {endless} endless")
    print(f"refused: {refused}")
    assert len(outcomes) > 3000
    assert len(kinds) > 500
    assert through > len(outcomes) / 2
    assert endless < len(outcomes) / 100
