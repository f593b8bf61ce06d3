"""Which stretches of code change when probes come and go."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import cast

from harness.listing import module
from sidestep.address import Range
from sidestep.arch.x86_64.detour import Count
from sidestep.arch.x86_64.insn import decode
from sidestep.kprobes.registry import Placed, Registry
from sidestep.probes import Kprobe
from sidestep.safety.region import Placement, Region
from sidestep.safety.verdict import verdict
from sidestep.symbols.resolve import Location
from sidestep.target.base import Buffer, Detour

START = 0x40_0000
NOTHING = Buffer(0x50_0000, b"", ())


def placed(start: int, size: int) -> Placed:
    placement = Placement("jump", start, Range(start, start + size), tuple(decode(b"\x90" * size, start)))
    return Placed(Kprobe(addr=start), 0, cast(Location, None), placement, Count(0))


def detour(start: int, size: int) -> Detour:
    return Detour(Range(start, start + size), (), (start + size,), b"\x90" * 5, NOTHING, ())


def region(start: int, size: int) -> Region:
    return Region(Range(start, start + size), tuple(decode(b"\x90" * size, start)), (start,))


def stretches(touched: Sequence[Range], others: Sequence[Range]) -> list[Range]:
    """The touched ranges, joined with what they meet: looked for in the plainest way."""
    found: list[Range] = []
    for wanted in touched:
        span = wanted
        while met := [each for each in (*others, *found, *touched) if each.overlaps(span)]:
            grown = Range(min(span.start, *(r.start for r in met)), max(span.end, *(r.end for r in met)))
            if grown == span:
                break
            span = grown
        found = [each for each in found if not each.overlaps(span)] + [span]
    return sorted(found)


def test_stretches_are_those_of_a_plain_search() -> None:
    chance = random.Random(4)
    for _ in range(300):
        registry = Registry()
        others: list[Range] = []
        for _ in range(chance.randrange(12)):
            start, size = START + chance.randrange(400), chance.choice((5, 6, 9, 70, 130))
            if chance.random() < 0.5:
                registry.add(placed(start, size))
            elif start not in registry.detours:
                registry.put_detour(detour(start, size), region(start, size))
            else:
                continue
            others.append(Range(start, start + size))
        touched = []
        for _ in range(chance.randrange(1, 6)):
            start = START + chance.randrange(400)
            touched.append(Range(start, start + chance.choice((5, 8, 100))))
        found = registry._stretches(touched)
        assert [each.span for each in found] == stretches(touched, others)
        for each in found:
            inside = [Range(*other) for other in others if other.overlaps(each.span)]
            met = [*(p.placement.dcr for p in each.placed), *(d.dcr for d in each.detours)]
            assert sorted(met) == sorted(inside)


def test_what_is_taken_out_is_not_met_any_more() -> None:
    registry = Registry()
    one, other = placed(START, 5), placed(START + 64, 5)
    for each in (one, other):
        registry.add(each)
    there = detour(START, 5)
    registry.put_detour(there, region(START, 5))
    assert registry.without_jumps(START - 2, b"\xcc" * 9) == b"\xcc" * 2 + b"\x90" * 5 + b"\xcc" * 2
    registry.remove(one.probe)
    (plan,) = registry.plans([Range(START, START + 5)])
    assert plan.old == (there,)
    assert plan.region is None
    registry.take_detour(there)
    assert registry.plans([Range(START, START + 5)]) == []
    (plan,) = registry.plans([Range(START + 60, START + 65)])
    assert plan.region is not None
    assert plan.region.probes == (START + 64,)


LISTING = {
    "f": """
        1000: 48 89 f8             # mov %rdi,%rax
        1003: 48 c1 e0 07          # shl $7,%rax
        1007: 48 31 f8             # xor %rdi,%rax
        100a: c3                   # ret
    """,
    "g": "c3",
}


def registered(registry: Registry, address: int) -> Placed:
    placement = verdict(module(LISTING), address)
    assert isinstance(placement, Placement)
    new = Placed(Kprobe(addr=address), 0, cast(Location, None), placement, Count(0))
    registry.add(new)
    return new


def carry_out(registry: Registry, placed: Placed) -> Region | None:
    (plan,) = registry.plans([placed.placement.dcr])
    for old in plan.old:
        registry.take_detour(old)
    if plan.region is not None:
        start, end = plan.region.dcr
        registry.put_detour(detour(start, end - start), plan.region)
    return plan.region


def test_what_is_left_of_a_region_detours_nothing_more() -> None:
    """Alone, the second probe's jump would reach over the end of the region of both, where threads come out
    of its buffer."""
    registry = Registry()
    first, second = registered(registry, 0x1000), registered(registry, 0x1003)
    both = carry_out(registry, first)
    assert both is not None
    assert (both.dcr, both.probes) == (Range(0x1000, 0x1007), (0x1000, 0x1003))
    registry.remove(first.probe)
    left = carry_out(registry, first)
    assert left is not None
    assert (left.dcr, left.probes) == (Range(0x1000, 0x1007), (0x1003,))
    registry.remove(second.probe)
    assert carry_out(registry, second) is None
    again = carry_out(registry, registered(registry, 0x1003))
    assert again is not None
    assert again.dcr == Range(0x1003, 0x100A)


def test_a_probe_that_comes_makes_its_own_region() -> None:
    registry = Registry()
    assert carry_out(registry, registered(registry, 0x1003)) is not None
    grown = carry_out(registry, registered(registry, 0x1000))
    assert grown is not None
    assert grown.dcr == Range(0x1000, 0x1007)
