"""Bytes that nobody compiled: every verdict is an answer, never an exception."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.listing import DATA, TEXT, module
from sidestep.errors import Refusal
from sidestep.safety.census import take_census
from sidestep.safety.context import ModuleContext
from sidestep.safety.region import Placement, merge
from sidestep.safety.verdict import verdict

# Bytes that make branches, computed jumps, sums of tables, prefixes and padding more likely than they are.
SPICE = st.sampled_from(
    [
        bytes.fromhex(each)
        for each in (
            "eb", "e8", "e9", "0f84", "74", "e2", "ffe0", "ff24c5", "4863 04ba", "4801d0", "488d15", "58c3",
            "50c3", "f30f1efa", "f0", "66", "c3", "cc", "90", "0f05", "b838000000", "48c7c00f000000", "6690",
            "c7f8", "0f0b",
        )
    ]
)  # fmt: skip
# Never empty: no two functions of a table start at the same address.
noise = st.lists(st.one_of(SPICE, st.binary(min_size=1, max_size=4)), min_size=1, max_size=30).map(b"".join)
numbers = st.lists(st.integers(-(1 << 31), (1 << 31) - 1), max_size=20)


def near_code(values: list[int]) -> list[int]:
    """Every other number leads into the code."""
    return [value if index % 2 else TEXT - DATA + value % 256 for index, value in enumerate(values)]


@settings(max_examples=400, deadline=None)
@given(
    bodies=st.lists(noise, min_size=1, max_size=4),
    gap=st.sampled_from(["", "90 90 90", "cc cc cc cc cc", "e9 00 00 00 00"]),
    values=numbers,
    pads=st.lists(st.integers(TEXT, TEXT + 64), max_size=3),
    targets=st.lists(st.integers(TEXT, TEXT + 128), max_size=4),
    is_pic=st.booleans(),
    probes=st.sampled_from([1, 1000]),
)
def test_a_verdict_is_an_answer(
    bodies: list[bytes],
    gap: str,
    values: list[int],
    pads: list[int],
    targets: list[int],
    is_pic: bool,
    probes: int,
) -> None:
    context: ModuleContext = module(
        {f"f{number}": body.hex() for number, body in enumerate(bodies)},
        gap=gap,
        tables={DATA: near_code(values)},
        pads={TEXT: sorted(pads)},
        is_pic=is_pic,
        relative_targets=sorted(set(targets)),
        probes=probes,
    )
    end = context.text[0].end
    placements = []
    for address in range(TEXT - 1, end + 2):
        answer = verdict(context, address)
        if isinstance(answer, Refusal):
            assert answer.detail
            continue
        assert isinstance(answer, Placement)
        assert answer.dcr.size >= 5
        assert answer.dcr.end <= end
        assert answer.address in [each.ip for each in answer.instructions]
        placements.append(answer)
    regions = merge(placements)
    assert {probe for region in regions for probe in region.probes} == {each.address for each in placements}
    parts = context.functions.parts  # type: ignore[attr-defined]
    assert take_census(context, parts).placed <= sum(len(body) for body in bodies)
