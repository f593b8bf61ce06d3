"""How probes near each other share a jump."""

from __future__ import annotations

import pytest

from harness.listing import module
from sidestep.address import Range
from sidestep.safety.region import Placement, Region, merge
from sidestep.safety.verdict import verdict

LISTING = """
    1000: 55                   # push %rbp
    1001: 48 89 e5             # mov %rsp,%rbp
    1004: 53                   # push %rbx
    1005: 48 89 fb             # mov %rdi,%rbx
    1008: b8 01 00 00 00       # mov $1,%eax
    100d: 5b                   # pop %rbx
    100e: 5d                   # pop %rbp
    100f: c3                   # ret
"""


def regions(*addresses: int, listing: str = LISTING) -> list[Region]:
    context = module({"f": listing, "g": "c3"})
    placements = []
    for address in addresses:
        answer = verdict(context, address)
        assert isinstance(answer, Placement), answer
        placements.append(answer)
    merged = merge(placements)
    assert merge(placements[::-1]) == merged
    return merged


def test_a_probe_inside_the_jump_of_another_is_called_in_its_buffer() -> None:
    (region,) = regions(0x1000, 0x1001, 0x1004)
    assert region.probes == (0x1000, 0x1001, 0x1004)
    assert (region.dcr, region.written) == (Range(0x1000, 0x1005), Range(0x1000, 0x1005))
    assert region.interior == [0x1001, 0x1004]


def test_a_probe_behind_the_jump_of_another_has_its_own() -> None:
    first, second = regions(0x1000, 0x1005)
    assert (first.dcr, first.probes) == (Range(0x1000, 0x1005), (0x1000,))
    assert (second.dcr, second.probes) == (Range(0x1005, 0x100D), (0x1005,))


def test_a_jump_that_reaches_into_the_next_instruction_by_one_byte() -> None:
    # push and mov have four bytes.
    (region,) = regions(0x1004, 0x1008)
    assert (region.dcr, region.written) == (Range(0x1004, 0x100D), Range(0x1004, 0x1009))
    assert region.probes == (0x1004, 0x1008)


@pytest.mark.parametrize("others", [(), (0x1008,), (0x100D,), (0x1008, 0x100D, 0x100E)])
def test_a_region_that_starts_early_serves_what_is_on_its_way(others: tuple[int, ...]) -> None:
    (region,) = regions(*others, 0x100F)
    assert region.dcr == Range(0x1008, 0x1010)
    assert region.written == Range(0x1008, 0x100D)
    assert region.probes == (*others, 0x100F)


def test_a_region_grows_only_as_far_as_a_probe_needs() -> None:
    (region,) = regions(0x1008, 0x100D)
    assert region.dcr == Range(0x1008, 0x100E)


def test_a_chain_of_regions_that_overlap_has_one_jump() -> None:
    first, second = regions(0x1001, 0x1004, 0x1005, 0x1008, 0x100F)
    # 1001, 1004 and 1005 are in the first jump's bytes; 1008 is behind them.
    assert (first.start, first.probes) == (0x1001, (0x1001, 0x1004, 0x1005))
    assert (second.start, second.probes) == (0x1008, (0x1008, 0x100F))
