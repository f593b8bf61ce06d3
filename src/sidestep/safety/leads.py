"""Does anything lead into the bytes that a jump would overwrite, other than through its first byte?

Control can come to an address in these ways only, and each is looked at:

* falling through from the instruction before it: inside the region, hence in its copy;
* a direct branch or call: rel8 from 128 bytes around, rel32 from anywhere in the module. Found at every byte offset
  (arch.x86_64.references), then confirmed or rejected by decoding the function that holds it. A branch that stands
  in the region itself is no harm: its copy leads to the copy;
* an address that somebody holds. Addresses of code are made by a `lea`, by an immediate, or by a pointer in data
  (in position-independent files one with a relocation); all of these are looked at. Where a function or a label
  with a name starts, anybody may hold its address;
* a table of offsets that a switch jumps by: arch.x86_64.jump_tables;
* arithmetic: arch.x86_64.computed_jumps;
* an exception that lands: the function's exception table;
* a return address or a saved instruction pointer: behind calls, which are last in a region; else on the stacks that
  are scanned when the jump is written.

A pointer that a jump or call takes from memory, from an argument or from an import slot is one of those addresses,
so such jumps need no proof of their own. Direct branches from other modules do not exist: they have no relocation
that could aim at the middle of a function. What generated code (a JIT) jumps to is an entry or a pointer it was given.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from sidestep.address import Range
from sidestep.arch.x86_64.code import FunctionCode
from sidestep.arch.x86_64.insn import Instruction, Mnemonic, direct_branch_target, rip_target
from sidestep.arch.x86_64.placement import JUMP_SIZE, Cover, describe
from sidestep.arch.x86_64.references import SHORT_REACH, Reference, short_branches
from sidestep.errors import INDIRECT_JUMP, JUMP_INTO_REGION, LANDING_PAD, Refusal
from sidestep.safety.context import ModuleContext, first_in

# From this many questions about one function on, all answers are prepared at once.
_FEW = 3
_MOST_KEPT = 4096


class _Lead(NamedTuple):
    """Something that leads to an address. `source`: the direct branch, None for everything else."""

    source: Instruction | None
    refusal: Refusal


class FunctionLeads:
    """What leads to the addresses of one function."""

    def __init__(self, context: ModuleContext, code: FunctionCode) -> None:
        self._context = context
        self.code = code
        self._around = Range(code.start, code.end)
        self._questions = 0
        self._known: dict[int, list[_Lead]] | None = None
        self._pads: list[int] | None = None
        self._pads_read = False

    def into(self, cover: Cover) -> Refusal | None:
        """What leads into the bytes of the jump at `cover.start`, its first byte left out; None: nothing does."""
        first, last = cover.start + 1, cover.start + JUMP_SIZE
        inner = cover.inner_boundaries
        refusal = self._find(cover, first, last, inner)
        if refusal is None and inner:
            refusal = self._pad_in(inner) or self._unproved()
        return refusal

    def to(self, address: int) -> Refusal | None:
        """What leads to `address` otherwise than by falling through."""
        for lead in self._leads(address, address + 1, exact=True):
            return lead.refusal
        return self._pad_in([address])

    def _find(self, cover: Cover, first: int, last: int, inner: list[int]) -> Refusal | None:
        moved = Range(cover.start, cover.instructions[-1].next_ip)
        exact = bool(inner) or cover.padded
        for lead in self._leads(first, last, exact):
            if lead.source is None or lead.source.ip not in moved:
                return lead.refusal
        return None

    def _leads(self, first: int, last: int, exact: bool) -> Iterator[_Lead]:
        """`exact`: an instruction or padding starts there, so that addresses in data count, too."""
        self._questions += 1
        if self._known is None and self._questions > _FEW:
            self._known = self._all()
        if self._known is not None:
            for address in range(first, last):
                for lead in self._known.get(address, ()):
                    if exact or lead.source is not None:
                        yield lead
            return
        yield from self._branches(first, last)
        if exact:
            yield from self._addresses(first, last)

    def _all(self) -> dict[int, list[_Lead]]:
        """Every lead to an address behind the function's start."""
        code = self.code
        known: dict[int, list[_Lead]] = defaultdict(list)
        # A branch out of the last bytes is refused by their cover, so that the padding behind matters, too.
        last = code.end + JUMP_SIZE
        for target, branch in code.branches:
            if code.start < target < last:
                known[target].append(_branch_lead(branch, target))
        # Between instructions that are certain, the function's own branches are exactly these.
        certain = Range(code.start, code.reach if code.doubtful is None else code.start)
        for target, field in self._context.references.into(code.start + 1, last, self._around):
            if field in certain and not _is_lea(code, field):
                continue
            lead = _confirm(self._context, Reference(target, field))
            if lead is not None:
                known[target].append(lead)
        for reference in self._short(code.start + 1, last):
            if reference.field not in certain:
                lead = _confirm(self._context, reference)
                if lead is not None:
                    known[reference.target].append(lead)
        for lead, address in self._named_addresses(code.start + 1, last):
            known[address].append(lead)
        return dict(known)

    def _branches(self, first: int, last: int) -> Iterator[_Lead]:
        context = self._context
        for reference in context.references.into(first, last, self._around):
            lead = _confirm(context, reference)
            if lead is not None:
                yield lead
        for reference in self._short(first, last):
            lead = _confirm(context, reference)
            if lead is not None:
                yield lead

    def _short(self, first: int, last: int) -> list[Reference]:
        start, content = self._context.window(first - SHORT_REACH, last + SHORT_REACH, first)
        return short_branches(content, start, first, last)

    def _addresses(self, first: int, last: int) -> Iterator[_Lead]:
        for lead, _ in self._named_addresses(first, last):
            yield lead

    def _named_addresses(self, first: int, last: int) -> Iterator[tuple[_Lead, int]]:
        context = self._context
        start = context.starts_in(first, last)
        while start is not None:
            function = context.function_at(start)
            name = function.name if function is not None and function.start == start else "a label"
            yield _Lead(None, Refusal(JUMP_INTO_REGION, f"{name} starts at {start:#x}")), start
            start = context.starts_in(start + 1, last)
        for values, what in (
            (context.relative_targets, "a pointer in the data leads"),
            (context.jump_tables.labels, "a jump table leads"),
        ):
            address = first_in(values, first, last)
            while address is not None:
                yield _Lead(None, Refusal(JUMP_INTO_REGION, f"{what} to {address:#x}")), address
                address = first_in(values, address + 1, last)
        for target, field in context.references.constants_into(first, last, self._around):
            detail = f"the four bytes at {field:#x} may be the address {target:#x}"
            yield _Lead(None, Refusal(JUMP_INTO_REGION, detail)), target

    def _pad_in(self, addresses: list[int]) -> Refusal | None:
        if not self._pads_read:
            self._pads_read = True
            self._pads = self._context.landing_pads(self.code)
        if self._pads is None:
            return Refusal(LANDING_PAD, "the function's exception table cannot be read")
        for address in addresses:
            index = bisect_left(self._pads, address)
            if index < len(self._pads) and self._pads[index] == address:
                return Refusal(LANDING_PAD, f"exceptions land at {address:#x}")
        return None

    def _unproved(self) -> Refusal | None:
        jump = self._context.unproved_jump(self.code)
        return None if jump is None else Refusal(INDIRECT_JUMP, describe(jump))


def leads_of(context: ModuleContext, code: FunctionCode) -> FunctionLeads:
    """The leads of one function, kept in the context."""
    leads = context.leads.get(code.start)
    if leads is None or leads.code is not code:
        if len(context.leads) >= _MOST_KEPT:
            context.leads.clear()
        leads = context.leads[code.start] = FunctionLeads(context, code)
    return leads


def _confirm(context: ModuleContext, reference: Reference) -> _Lead | None:
    """What the instruction at a possible reference really does; None: it is none."""
    target, field = reference
    function = context.function_at(field)
    if function is None:
        return _Lead(None, _possible(field, target))
    code = context.code_of(function)
    instruction = code.containing(field)
    if instruction is None:
        return _Lead(None, _possible(field, target))
    if direct_branch_target(instruction) == target:
        return _branch_lead(instruction, target)
    if instruction.mnemonic == Mnemonic.LEA and rip_target(instruction) == target:
        return _Lead(None, Refusal(JUMP_INTO_REGION, f"{describe(instruction)} takes the address {target:#x}"))
    if code.doubtful is not None:
        return _Lead(None, _possible(field, target))
    return None


def _branch_lead(branch: Instruction, target: int) -> _Lead:
    return _Lead(branch, Refusal(JUMP_INTO_REGION, f"{describe(branch)} leads to {target:#x}"))


def _possible(field: int, target: int) -> Refusal:
    detail = f"the bytes at {field:#x} may be a branch to {target:#x}, and what they are cannot be told"
    return Refusal(JUMP_INTO_REGION, detail)


def _is_lea(code: FunctionCode, field: int) -> bool:
    offset = field - code.start
    return offset >= 2 and code.code[offset - 2] == 0x8D
