"""Regions of armed probes serve every probepoint exactly, whatever the code and wherever the probes are.

Random functions are made of short instructions, long ones and branches, as bytes. A small interpreter runs
them, once as they are and once with the jumps of the merged regions written; both runs must arrive at each
probepoint equally often.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.listing import TEXT, module
from sidestep.arch.x86_64.insn import Instruction, direct_branch_target, is_conditional, is_return
from sidestep.safety.context import ModuleContext
from sidestep.safety.region import Placement, Region, merge
from sidestep.safety.verdict import verdict

# nop; xor %eax,%eax; mov %rdi,%rax; lea 8(%rdi),%rax; mov $1,%eax; movq $1,(%rsp)
STRAIGHT = ("90", "31 c0", "48 89 f8", "48 8d 47 08", "b8 01 00 00 00", "48 c7 04 24 01 00 00 00")
STEPS = 400

lines = st.lists(
    st.one_of(
        st.sampled_from(STRAIGHT),
        st.tuples(
            st.sampled_from(["70", "eb", "0f 80"]), st.integers(-6, 6)
        ),  # jo, jmp, jo near: by instructions
        st.just("c3"),  # ret
    ),
    min_size=2,
    max_size=14,
)


def assemble(items: Sequence[str | tuple[str, int]]) -> bytes:
    """Branches lead to the instruction so many places further, or to the nearest end."""
    sizes = []
    for item in items:
        if isinstance(item, str):
            sizes.append(len(bytes.fromhex(item)))
        else:
            sizes.append({"70": 2, "eb": 2, "0f 80": 6}[item[0]])
    places = [sum(sizes[:number]) for number in range(len(sizes))]
    content = b""
    for number, item in enumerate(items):
        if isinstance(item, str):
            content += bytes.fromhex(item)
            continue
        opcode, distance = item
        target = places[max(0, min(number + distance, len(items) - 1))]
        displacement = target - places[number] - sizes[number]
        content += bytes.fromhex(opcode) + displacement.to_bytes(
            4 if " " in opcode else 1, "little", signed=True
        )
    return content + b"\xc3"


def where_next(instruction: Instruction, choice: bool) -> int | None:
    """Where control goes; `choice` is whether a conditional branch is taken. None: the function returns."""
    if is_return(instruction):
        return None
    target = direct_branch_target(instruction)
    return instruction.next_ip if target is None or (is_conditional(instruction) and not choice) else target


def run_bare(code: dict[int, Instruction], choices: random.Random) -> Counter[int]:
    """How often control arrives at each instruction."""
    arrivals: Counter[int] = Counter()
    at: int | None = TEXT
    for _ in range(STEPS):
        if at is None:
            break
        arrivals[at] += 1
        at = where_next(code[at], bool(choices.getrandbits(1)))
    return arrivals


def run_probed(code: dict[int, Instruction], regions: list[Region], choices: random.Random) -> Counter[int]:
    """How often each probe is called. Control in the copies is an address with a region; a fetch of original
    bytes that a jump has overwritten fails."""
    hits: Counter[int] = Counter()
    starts = {region.start: region for region in regions}
    at: int | None = TEXT
    inside: Region | None = None
    for _ in range(STEPS):
        if at is None:
            break
        if inside is None and at in starts:
            inside = starts[at]
        if inside is None:
            assert not any(at in region.written for region in regions), f"{at:#x} is overwritten"
        elif at in inside.probes:
            hits[at] += 1
        instruction = code[at]
        at = where_next(instruction, bool(choices.getrandbits(1)))
        if at is None or inside is None:
            continue
        branched = at != instruction.next_ip
        copies = {each.ip for each in inside.instructions[1:]}
        # A branch of a copy to the first instruction of the DCR leads to the jump, to another one to its
        # copy.
        if at not in copies and (branched or at == inside.dcr.end or at == inside.start):
            inside = None
        else:
            assert at in copies, f"{at:#x} has no copy"
    return hits


def placements_of(context: ModuleContext, addresses: Sequence[int]) -> list[Placement]:
    return [answer for address in addresses if isinstance(answer := verdict(context, address), Placement)]


@settings(max_examples=400, deadline=None)
@given(items=lines, seed=st.integers(0, 1 << 30), share=st.sampled_from([0.2, 0.5, 1.0]))
def test_every_probepoint_is_served_exactly(
    items: list[str | tuple[str, int]], seed: int, share: float
) -> None:
    choices = random.Random(seed)
    context = module({"f": assemble(items).hex()}, gap="cc cc")
    function = context.function_at(TEXT)
    assert function is not None
    code = context.code_of(function)
    assert code.decode_all()
    instructions = {instruction.ip: instruction for instruction in code.instructions}
    chosen = [address for address in instructions if choices.random() < share]
    placements = placements_of(context, chosen)
    regions = merge(placements)

    assert sorted(probe for region in regions for probe in region.probes) == sorted(
        p.address for p in placements
    )
    for one, other in pairwise(regions):
        assert one.dcr.end <= other.start, "regions do not overlap"
    for region in regions:
        assert region.dcr.end >= region.written.end
        ends = [instruction.next_ip for instruction in region.instructions]
        assert [each.ip for each in region.instructions] == [region.start, *ends[:-1]], "no gap in a region"
    assert merge(reversed(placements)) == regions

    for _ in range(4):
        turn = choices.getrandbits(32)
        bare = run_bare(instructions, random.Random(turn))
        hits = run_probed(instructions, regions, random.Random(turn))
        assert hits == Counter({p.address: bare[p.address] for p in placements if bare[p.address]})


@settings(max_examples=150, deadline=None)
@given(items=lines)
def test_few_and_many_questions_have_the_same_answers(items: list[str | tuple[str, int]]) -> None:
    """Searching for one address, a table for many, a fresh context for each: nothing depends on the way."""
    listing = {"f": assemble(items).hex(), "g": assemble(items[::-1]).hex()}
    many = module(listing, gap="cc cc", probes=1000)
    addresses = []
    for part in many.functions.parts:  # type: ignore[attr-defined]
        code = many.code_of(part)
        code.decode_all()
        addresses += code.boundaries[:-1]
    for address in addresses:
        one = verdict(module(listing, gap="cc cc"), address)
        again = verdict(many, address)
        if isinstance(one, Placement) and isinstance(again, Placement):
            assert (one.tactic, one.address, one.dcr) == (again.tactic, again.address, again.dcr)
        else:
            assert one == again
