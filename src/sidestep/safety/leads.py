"""Does anything lead into the bytes that a jump would overwrite, other than through its first byte?

Control can come to an address in these ways only, and each is looked at:

* falling through from the instruction before it: inside the region, hence in its copy;
* a direct branch or call: rel8 from 128 bytes around, rel32 from anywhere in the module. Found at every
  byte offset (arch.x86_64.references), then confirmed or rejected by decoding the function that holds it. A
  branch that stands in the region itself is no harm: its copy leads to the copy;
* an address that somebody holds. Addresses of code are made by a `lea`, by an immediate, or by a pointer in
  data (in position-independent files one with a relocation); all of these are looked at. Where a function
  or a label with a name starts, anybody may hold its address;
* a table of offsets that a switch jumps by: arch.x86_64.jump_tables;
* arithmetic: arch.x86_64.computed_jumps;
* an exception that lands: the function's exception table;
* a return address or a saved instruction pointer: behind calls, which are last in a region; else on the
  stacks that are scanned when the jump is written.

A pointer that a jump or call takes from memory, from an argument or from an import slot is one of those
addresses, so such jumps need no proof of their own. The same search tells where data stands between the
code of a function: what is behind it was decoded from nobody knows which byte on, and is not probed;
neither is code that nothing leads to. Direct branches from other modules do not exist: they have no
relocation that could aim at the middle of a function. What generated code (a JIT) jumps to is an entry or a
pointer it was given.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from sidestep.address import Range
from sidestep.arch.x86_64.code import FunctionCode
from sidestep.arch.x86_64.insn import (
    FlowControl,
    Instruction,
    Mnemonic,
    direct_branch_target,
    falls_through,
    rip_target,
)
from sidestep.arch.x86_64.placement import Cover, describe
from sidestep.arch.x86_64.references import LONGEST_IMMEDIATE, SHORT_REACH, Reference, short_branches
from sidestep.errors import INDIRECT_JUMP, JUMP_INTO_REGION, LANDING_PAD, NOT_DECODABLE, UNREACHABLE, Refusal
from sidestep.events.layout import JUMP_SIZE
from sidestep.safety.context import ModuleContext, first_in

# After this many questions about one function, all answers are prepared at once.
_FEW = 3
# The addresses around the one in question that are looked at with it, no more than short_branches is quick
# for: regions that start earlier, the whole of the longest region.
_BEFORE, _BEHIND = 5, 27
_MIXED = "code and data are mixed"
_CALL_OR_JUMP = (b"\xe8", b"\xe9")
_LEA = b"\x8d"


class _Known(NamedTuple):
    """What leads to some addresses: direct branches, and everything else (where it is one of the module's
    named addresses, the text is empty). `data`: addresses of data that stands between code, and what reads
    it."""

    branches: dict[int, list[Instruction]]
    others: dict[int, str]
    data: dict[int, str]


class FunctionLeads:
    """What leads to the addresses of one function."""

    def __init__(self, context: ModuleContext, code: FunctionCode) -> None:
        self._context = context
        self.code = code
        self._around = Range(code.start, code.end)
        self._questions = 0
        self._known = _Known({}, {}, {})
        self._first_data: int | None = None
        self._dead: dict[int, Instruction] = {}
        self._known_range = Range(0, 0)
        self._possible: list[Reference] = []
        self._possible_range = Range(0, 0)
        self._pads: list[int] | None = None
        self._pads_read = False

    def into(self, cover: Cover) -> Refusal | None:
        """What leads into the bytes of the jump at `cover.start` behind its first; None: nothing does."""
        start, inner = cover.start, cover.inner
        branches, others, data = self._look(start, cover.end)
        end = cover.instructions[-1].next_ip
        if data:
            for address in range(start, cover.end):
                if address in data:
                    return Refusal(NOT_DECODABLE, data[address])
        for address in range(start + 1, max(start + JUMP_SIZE, end)):
            for branch in branches.get(address, ()):
                # A branch of the region itself leads to a copy. There is none of the middle of an
                # instruction (what follows a prefix).
                if not start <= branch.ip < end or address not in inner:
                    return _branch_refusal(branch, address)
            # Addresses in data are those of instructions; in the middle of one they are something else.
            if address in others and address in inner:
                return self._other_refusal(others[address], address)
        if len(cover.instructions) > 1:
            return self._pad_in(inner) or self._computed(inner)
        return None

    def to(self, address: int) -> Refusal | None:
        """What leads to `address` otherwise than by falling through."""
        branches, others, _ = self._look(address, address + JUMP_SIZE)
        for branch in branches.get(address, ()):
            return _branch_refusal(branch, address)
        if address in others:
            return self._other_refusal(others[address], address)
        return self._pad_in([address]) or self._computed([address])

    def doubt(self, address: int) -> Refusal | None:
        """Why it is not certain that `address`, a boundary behind the function's start, is code."""
        self._look_at_all()
        code = self.code
        if code.doubtful is not None:
            return Refusal(NOT_DECODABLE, f"{describe(code.doubtful)} leads into an instruction, {_MIXED}")
        if self._first_data is not None and self._first_data <= address:
            return Refusal(NOT_DECODABLE, f"{self._known.data[self._first_data]}, {_MIXED}")
        if address in self._dead:
            return Refusal(UNREACHABLE, f"what follows {describe(self._dead[address])}")
        return None

    def _look(self, first: int, last: int) -> _Known:
        """What leads to the addresses `first` up to `last`, at least."""
        known = self._known_range
        if not (known.start <= first and last <= known.end):
            self._questions += 1
            if self._questions > _FEW:
                self._look_at_all()
            else:
                self._known_range = Range(first, last)
                self._known = self._near(first, last)
        return self._known

    def _look_at_all(self) -> None:
        whole = Range(self.code.start, self.code.end + _BEHIND)
        if self._known_range != whole:
            self._known_range = whole
            self._known = self._all(*whole)
            self._first_data = min((at for at in self._known.data if at < self.code.end), default=None)
            self._dead = self._find_dead()

    def _near(self, first: int, last: int) -> _Known:
        """For a few addresses: only what may lead there is decoded."""
        known = _Known(defaultdict(list), {}, {})
        around = self._possible_range
        if not (around.start <= first and last <= around.end):
            # The neighbours are asked for soon: a region that starts earlier, or behind an endbr64.
            around = self._possible_range = Range(first - _BEFORE, max(last, first + _BEHIND))
            self._possible = [*self._references(*around), *self._short(*around)]
        for reference in self._possible:
            if first - LONGEST_IMMEDIATE <= reference.target < last:
                self._confirm(reference, first, last, known)
        self._add_addresses(first, last, known)
        return known

    def _all(self, first: int, last: int) -> _Known:
        """For the whole function, which is decoded: its own branches are exactly known."""
        code = self.code
        known = _Known(defaultdict(list), {}, {})
        for target, branch in code.branches:
            if first <= target < last:
                known.branches[target].append(branch)
        certain = Range(code.start, code.reach if code.doubtful is None else code.start)
        for reference in self._references(first, last):
            if reference.field not in certain or _is_operand(code, reference.field):
                self._confirm(reference, first, last, known)
        for reference in self._short(first, last):
            if reference.field not in certain:
                self._confirm(reference, first, last, known)
        self._add_addresses(first, last, known)
        return known

    def _find_dead(self) -> dict[int, Instruction]:
        """The instructions that nothing leads to, each with the last jump or return before it."""
        dead: dict[int, Instruction] = {}
        branches, others, _ = self._known
        pads = self._landing_pads()
        unproved, labels = self._context.computed_jumps(self.code)
        if pads is None or unproved is not None:
            return dead
        last: Instruction | None = None
        for address, instruction in zip(self.code.boundaries, self.code.instructions, strict=False):
            if last is not None:
                if (
                    address in branches
                    or address in others
                    or address in labels
                    or first_in(pads, address, address + 1) is not None
                ):
                    last = None
                else:
                    dead[address] = last
                    continue
            if instruction.flow_control != FlowControl.NEXT and not falls_through(instruction):
                last = instruction
        return dead

    def _references(self, first: int, last: int) -> Iterator[Reference]:
        """What may refer to `first` up to `last`; calls of the function and pointers to it, many and
        no harm, are left out."""
        bytes_at = self._context.bytes_at
        for reference in self._context.references.into(first - LONGEST_IMMEDIATE, last, self._around):
            if reference.target == self.code.start:
                before = bytes_at(reference.field - 2, reference.field)
                if before[1:] in _CALL_OR_JUMP or before[:1] == _LEA:
                    continue
            yield reference

    def _short(self, first: int, last: int) -> list[Reference]:
        table = self._context.short_branches
        if table is not None:
            return table.into(first, last)
        start, content = self._context.window(first - SHORT_REACH, last + SHORT_REACH, self.code.start)
        return short_branches(content, start, first, last)

    def _add_addresses(self, first: int, last: int, known: _Known) -> None:
        named = self._context.named_addresses
        for index in range(bisect_left(named, first), bisect_left(named, last)):
            known.others[named[index]] = ""
        for base in self._context.tables_in(first, last):
            known.data[base] = f"a jump table stands at {base:#x}"
        for target, field in self._context.references.constants_into(first, last):
            known.others.setdefault(target, f"the four bytes at {field:#x} may be the address {target:#x}")

    def _confirm(self, reference: Reference, first: int, last: int, known: _Known) -> None:
        """Find out what the instruction at a possible reference to `first` up to `last` really does."""
        possible, field = reference
        function = self._context.function_at(field)
        instruction = None
        if function is not None:
            code = self._context.code_of(function)
            instruction = code.containing(field)
        if instruction is None:
            if first <= possible < last:
                what = f"the bytes at {field:#x}, in no known instruction, perhaps lead to {possible:#x}"
                known.others[possible] = what
            return
        target = direct_branch_target(instruction)
        if target is not None and first <= target < last:
            known.branches[target].append(instruction)
            return
        target = rip_target(instruction)
        if target is not None and first <= target < last:
            if instruction.mnemonic == Mnemonic.LEA:
                known.others[target] = f"{describe(instruction)} takes the address {target:#x}"
            else:
                known.data[target] = f"{describe(instruction)} takes {target:#x} for data"
        elif first <= possible < last and code.doubtful is not None:
            known.others[possible] = f"the bytes at {field:#x} perhaps lead to {possible:#x}, {_MIXED}"

    def _other_refusal(self, what: str, address: int) -> Refusal:
        return Refusal(JUMP_INTO_REGION, what or self._context.why_named(address))

    def _landing_pads(self) -> list[int] | None:
        if not self._pads_read:
            self._pads_read = True
            self._pads = self._context.landing_pads(self.code)
        return self._pads

    def _pad_in(self, addresses: list[int]) -> Refusal | None:
        pads = self._landing_pads()
        if pads is None:
            return Refusal(LANDING_PAD, "the function's exception table cannot be read")
        if pads:
            for address in addresses:
                if first_in(pads, address, address + 1) is not None:
                    return Refusal(LANDING_PAD, f"exceptions land at {address:#x}")
        return None

    def _computed(self, inner: list[int]) -> Refusal | None:
        """A computed jump of the function leads to one of these boundaries, as far as anybody knows."""
        unproved, labels = self._context.computed_jumps(self.code)
        if unproved is not None:
            return Refusal(INDIRECT_JUMP, describe(unproved))
        for address in inner:
            if address in labels:
                return Refusal(JUMP_INTO_REGION, f"a computed jump leads to {address:#x}")
        return None


def leads_of(context: ModuleContext, code: FunctionCode) -> FunctionLeads:
    """The leads of one function, kept in the context."""
    leads = context.leads.get(code.start)
    if leads is None or leads.code is not code:
        leads = context.leads[code.start] = FunctionLeads(context, code)
    return leads


def _branch_refusal(branch: Instruction, target: int) -> Refusal:
    return Refusal(JUMP_INTO_REGION, f"{describe(branch)} leads to {target:#x}")


def _is_operand(code: FunctionCode, field: int) -> bool:
    """The displacement may be that of an operand off the instruction pointer (ModRM mod=00 rm=101)."""
    offset = field - code.start
    return offset >= 1 and code.code[offset - 1] & 0xC7 == 0x05
