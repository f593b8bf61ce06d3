"""The verdict about one probepoint: how its probe is placed, or which rule forbids it.

Rules, in the order in which they are asked:

1. the module may be probed at all (blacklist)
2. an instruction starts at the address (boundary); the probe of an `endbr64` goes behind it
3. whole instructions of five bytes can move (arch.x86_64.placement, blacklist)
4. the jump lies in one page: written in one step, nobody who kills the controller can leave half of it
5. nothing leads into the jump (leads)
6. no call moves in a program with shadow stacks
7. no instruction that moves can fault, in a program that handles faults itself
8. the bytes in memory are those of the file

A region usually starts at the probepoint. Where that is refused, regions that start before it and hold it
are tried, the nearest first: as nothing may lead into a region, whoever reaches the probepoint comes
through its start. Details give the file's own addresses, as nm and objdump print them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sidestep.address import Range
from sidestep.arch.x86_64.code import FunctionCode
from sidestep.arch.x86_64.insn import decode, falls_through, is_call
from sidestep.arch.x86_64.placement import (
    ENDBR64_SIZE,
    Cover,
    cover,
    describe,
    faulting,
    is_endbr64,
)
from sidestep.errors import (
    CALL_IN_REGION,
    CROSSES_PAGE,
    FOREIGN_BREAKPOINT,
    FOREIGN_BYTES,
    TOO_SHORT,
    Refusal,
)
from sidestep.safety.blacklist import refused_module, refused_range, refused_system_call
from sidestep.safety.boundary import Boundary, find_boundary
from sidestep.safety.context import ModuleContext
from sidestep.safety.leads import FunctionLeads, leads_of
from sidestep.safety.region import Placement

_INT3 = 0xCC
# How far before a probepoint its region may start.
_FARTHEST_START = 48


def verdict(context: ModuleContext, address: int) -> Placement | Refusal:
    """How a probe at the run-time `address` is placed, or why it cannot be."""
    refusal = refused_module(context)
    if refusal is not None:
        return refusal
    found = find_boundary(context, address - context.bias)
    if isinstance(found, Refusal):
        return found
    return verdict_at(context, found)


def verdicts(context: ModuleContext, addresses: Iterable[int]) -> Iterator[Placement | Refusal]:
    """The verdict about each of `addresses`, in their order."""
    for address in addresses:
        yield verdict(context, address)


def verdict_at(context: ModuleContext, boundary: Boundary) -> Placement | Refusal:
    """The verdict about an instruction that was found."""
    code, index = boundary
    leads = leads_of(context, code)
    notes: tuple[str, ...] = ()
    if is_endbr64(code.instructions[index]):
        behind = code.boundaries[index] + ENDBR64_SIZE
        if not code.decode_to(behind):
            return Refusal(TOO_SHORT, f"nothing follows {describe(code.instructions[index])}")
        refusal = leads.to(behind)
        if refusal is not None:
            # Behind the endbr64 the probe would count these, too, as if they came through it.
            return refusal
        notes = (f"endbr64 at {code.boundaries[index]:#x} stays in place, the probe is behind it",)
        index += 1
    result = _place(context, code, leads, index, index, notes)
    if isinstance(result, Placement):
        return result
    for start in _earlier_starts(code, leads, index):
        earlier = _place(context, code, leads, start, index, notes)
        if isinstance(earlier, Placement):
            return earlier
    return result


def _earlier_starts(code: FunctionCode, leads: FunctionLeads, index: int) -> Iterator[int]:
    """The instructions before number `index` from which control falls through to it, and which is the only
    way to it."""
    probed = code.boundaries[index]
    for start in range(index - 1, -1, -1):
        before = code.instructions[start]
        if (
            before.ip < probed - _FARTHEST_START
            or is_call(before)
            or not falls_through(before)
            or is_endbr64(before)
            or leads.to(before.next_ip) is not None
        ):
            return
        yield start


def _place(
    context: ModuleContext,
    code: FunctionCode,
    leads: FunctionLeads,
    start: int,
    probed: int,
    notes: tuple[str, ...],
) -> Placement | Refusal:
    """Judge the region from instruction `start` on, for a probe of instruction `probed`."""
    region = cover(code, start, probed)
    if isinstance(region, Refusal):
        return region
    refusal = (
        refused_range(context, Range(region.start, region.end))
        or refused_system_call(code, region)
        or (Refusal(CROSSES_PAGE, f"{region.start:#x}") if region.crosses_page else None)
        or leads.into(region)
        or _refused_call(context, region)
        or _refused_faults(context, region)
        or _refused_bytes(context, region)
    )
    if refusal is not None:
        return refusal
    return _placement(context, region, code.boundaries[probed], notes)


def _refused_call(context: ModuleContext, region: Cover) -> Refusal | None:
    """The copy of a call pushes a return address that the shadow stack does not have."""
    last = region.instructions[-1]
    if context.batch.shadow_stacks and is_call(last):
        return Refusal(CALL_IN_REGION, f"{describe(last)}, and a thread has a shadow stack")
    return None


def _refused_faults(context: ModuleContext, region: Cover) -> Refusal | None:
    rule = context.batch.fault_rule
    if rule is None:
        return None
    instruction = faulting(region.instructions)
    return None if instruction is None else Refusal(rule, describe(instruction))


def _refused_bytes(context: ModuleContext, region: Cover) -> Refusal | None:
    """The DCR in memory, without our own probes, is not that of the file."""
    if context.memory is None:
        return None
    expected = context.bytes_at(region.start, region.end)
    found = context.memory(region.start + context.bias, region.end - region.start)
    if found == expected:
        return None
    for offset, (is_now, was) in enumerate(zip(found, expected, strict=False)):
        if is_now != was:
            where = f"{was:#04x} in the file is {is_now:#04x} in memory at {region.start + offset:#x}"
            return Refusal(FOREIGN_BREAKPOINT if is_now == _INT3 else FOREIGN_BYTES, where)
    return Refusal(FOREIGN_BYTES, f"the memory at {region.start:#x} cannot be read")


def _placement(context: ModuleContext, region: Cover, probed: int, notes: tuple[str, ...]) -> Placement:
    bias = context.bias
    instructions = region.instructions
    if bias:
        # RIP-relative operands and branch targets follow the address that an instruction is decoded at.
        content = context.bytes_at(region.start, instructions[-1].next_ip)
        instructions = tuple(decode(content, region.start + bias))
    if region.start != probed:
        notes += (f"the region starts at {region.start:#x}, before the probepoint",)
    return Placement(
        "padding" if region.is_padded else "jump" if len(instructions) == 1 else "region",
        probed + bias,
        Range(region.start + bias, region.end + bias),
        instructions,
        region.has_inner_branches,
        notes,
    )
