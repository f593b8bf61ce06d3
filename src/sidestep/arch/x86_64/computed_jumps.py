"""Is it known where a function's computed jumps lead?

A jump through a register or memory takes an address that somebody made. In compiled code only these can
make one:

* a constant: a rip-relative `lea`, an immediate, a pointer in data (safety.leads looks at all of them);
* the place behind a call (return addresses, setjmp, getcontext): never inside a region, where a call is
  last;
* a sum: the entry of a table of offsets plus the table's address (jump_tables finds their labels), or,
  where GCC's labels as values are subtracted, plus the address of a label: these tables are read here.

Pointers that were loaded from memory, passed as an argument, or returned by a call were made in one of
these ways somewhere else; only a *sum that is computed here* can lead where no constant points. So a jump
is proved when no arithmetic reaches it except the sum of a table's entry and its own base. What is left
unproved is hand-written: jumps into unrolled loops (`lea`, `shl`, `add`), and tables of offsets to
something else than themselves.

Not covered, and found in no compiled program: an interpreter that fills a table of pointers by arithmetic
at run time (LuaJIT does). Its labels follow unconditional jumps, which no region goes across.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sidestep.address import Range
from sidestep.arch.x86_64.code import FunctionCode
from sidestep.arch.x86_64.insn import (
    Instruction,
    InstructionInfoFactory,
    Mnemonic,
    OpAccess,
    OpKind,
    Register,
    falls_through,
    general_register,
    is_call,
    is_indirect_jump,
    register,
    rip_target,
)
from sidestep.arch.x86_64.jump_tables import JumpTables

# jmp *%r64 (FF E0-E7, r8-r15 with a REX prefix), and push %r64; ret. Most functions have neither at any
# byte offset.
_MAY_JUMP_BY_REGISTER = re.compile(rb"\xff[\xe0-\xe7]|[\x50-\x57]\xc3")
# A walk that visits more instructions than this ends without a proof.
_LONGEST_WALK = 4000
_LONGEST_LINE = 200
# Labels of one function (and its cold part) are not farther from each other.
_FARTHEST_LABEL = 1 << 25

_INFO = InstructionInfoFactory()
_WRITES = (OpAccess.WRITE, OpAccess.COND_WRITE, OpAccess.READ_WRITE, OpAccess.READ_COND_WRITE)
_KEPT_BY_CALLS = frozenset({"rbx", "rsp", "rbp", "r12", "r13", "r14", "r15"})


class ComputedJumps(NamedTuple):
    """What is known about the computed jumps of one function.

    `unproved`: the first that may lead anywhere; where the function cannot be decoded up to what may be
    such a jump, the last instruction before the bytes that are none. `labels`: addresses in the function
    that tables of offsets from a label lead to.
    """

    unproved: Instruction | None
    labels: frozenset[int]


NO_JUMPS = ComputedJumps(None, frozenset())


def computed_jumps(
    code: FunctionCode, tables: JumpTables, numbers: Callable[[int], Sequence[int]]
) -> ComputedJumps:
    """`tables` are those of the module; `numbers` gives the signed 32-bit numbers of its data from an address
    on, as many as there may be."""
    jumps: list[tuple[int, str]] = []
    for match in _MAY_JUMP_BY_REGISTER.finditer(code.code):
        index = code.index_containing(code.start + match.end() - 1)
        if index is None:
            return ComputedJumps(code.instructions[-1], frozenset()) if code.instructions else NO_JUMPS
        instruction = code.instructions[index]
        if not (is_indirect_jump(instruction) and instruction.op0_kind == OpKind.REGISTER):
            if not _is_pushed_return(code, index):
                continue
            instruction = code.instructions[index - 1]
        source = general_register(instruction.op0_register)
        if source is None:
            return ComputedJumps(code.instructions[index], frozenset())
        jumps.append((index, source))
    if not jumps:
        return NO_JUMPS
    walk = _Walk(code, tables, numbers)
    while True:
        known = len(walk.labels)
        for index, source in jumps:
            if not walk.is_proved(index, source):
                return ComputedJumps(code.instructions[index], frozenset(walk.labels))
        if len(walk.labels) == known:
            return ComputedJumps(None, frozenset(walk.labels))
        # What was found to be a label is a place where control comes from the jumps.
        walk.follow_labels()


def _is_pushed_return(code: FunctionCode, index: int) -> bool:
    if index == 0 or code.instructions[index].mnemonic != Mnemonic.RET:
        return False
    before = code.instructions[index - 1]
    return before.mnemonic == Mnemonic.PUSH and before.op0_kind == OpKind.REGISTER


class _Walk:
    """Backwards from a jump, against the flow of control, to where the register's value comes from."""

    def __init__(
        self, code: FunctionCode, tables: JumpTables, numbers: Callable[[int], Sequence[int]]
    ) -> None:
        self.labels: set[int] = set()
        self._function = Range(code.start, code.end)
        self._instructions = code.instructions
        self._bases = tables.bases
        self._numbers = numbers
        code.decode_all()
        places = {address: index for index, address in enumerate(code.boundaries[:-1])}
        self._sources: dict[int, list[int]] = defaultdict(list)
        for target, branch in code.branches:
            if target in places and not is_call(branch):
                self._sources[places[target]].append(places[branch.ip])
        labels = tables.labels
        first, last = bisect_left(labels, code.start), bisect_left(labels, code.end)
        self._places = places
        self._labels = {places[label] for label in labels[first:last] if label in places}
        self._jumps = [i for i, instruction in enumerate(code.instructions) if is_indirect_jump(instruction)]

    def follow_labels(self) -> None:
        """Take into account that the jumps lead to the `labels`, too."""
        self._labels |= {self._places[label] for label in self.labels if label in self._places}

    def is_proved(self, index: int, register_name: str) -> bool:
        """No arithmetic but that of a jump table reaches the register before instruction `index`."""
        waiting = [(index, register_name)]
        seen = set(waiting)
        while waiting:
            if len(seen) > _LONGEST_WALK:
                return False
            at, name = waiting.pop()
            for before in self._before(at):
                follow = self._origins(before, name)
                if follow is None:
                    return False
                for state in follow:
                    if state not in seen:
                        seen.add(state)
                        waiting.append(state)
        return True

    def _before(self, index: int) -> list[int]:
        """The instructions that can run immediately before `index`; none for the function's entry."""
        before = list(self._sources.get(index, ()))
        if index and falls_through(self._instructions[index - 1]):
            before.append(index - 1)
        if index in self._labels:
            before += self._jumps
        return before

    def _origins(self, index: int, name: str) -> list[tuple[int, str]] | None:
        """Where the value of `name` behind instruction `index` comes from: (instruction, register before
        it).

        Empty: from memory, a constant, a call, a table. None: from arithmetic.
        """
        instruction = self._instructions[index]
        if is_call(instruction):
            return [(index, name)] if name in _KEPT_BY_CALLS else []
        if not writes(instruction, name):
            return [(index, name)]
        return self._made_by(index, instruction, name)

    def _made_by(self, index: int, instruction: Instruction, name: str) -> list[tuple[int, str]] | None:
        mnemonic, source_kind = instruction.mnemonic, int(instruction.op1_kind)
        if mnemonic == Mnemonic.MOV or _is_conditional_move(instruction):
            follow = [] if not _is_conditional_move(instruction) else [(index, name)]
            if source_kind == OpKind.REGISTER:
                source = general_register(instruction.op1_register)
                if source is None or not _is_whole(instruction.op1_register, source):
                    return None
                follow.append((index, source))
            elif source_kind == OpKind.MEMORY and not _is_whole(instruction.op0_register, name):
                return None
            return follow
        if mnemonic in (Mnemonic.POP, Mnemonic.MOVQ, Mnemonic.XCHG, Mnemonic.LEAVE):
            return []
        if mnemonic == Mnemonic.LEA:
            if taken_address(instruction) is not None:
                return []
            base, scaled = (
                general_register(instruction.memory_base),
                general_register(instruction.memory_index),
            )
            displaced = instruction.memory_displacement != 0 or instruction.memory_index_scale != 1
            if base and scaled and not displaced and self._is_table_sum(index, base, scaled):
                return []
            if base and not scaled and not instruction.memory_displacement:
                return [(index, base)]
            return None
        if mnemonic == Mnemonic.ADD:
            return [] if self._is_added_entry(index, instruction, name) else None
        if mnemonic == Mnemonic.XOR and source_kind == OpKind.REGISTER:
            return [] if instruction.op0_register == instruction.op1_register else None
        if mnemonic == Mnemonic.XOR and source_kind == OpKind.MEMORY:
            # A stored pointer that is encrypted with the process's pointer guard, as setjmp's are.
            guarded = int(instruction.segment_prefix) == Register.FS or rip_target(instruction) is not None
            return [(index, name)] if guarded else None
        if mnemonic in (Mnemonic.ROR, Mnemonic.ROL):
            return [(index, name)]
        return None

    # Sums

    def _is_added_entry(self, index: int, instruction: Instruction, name: str) -> bool:
        if not _is_whole(instruction.op0_register, name):
            return False
        if instruction.op1_kind == OpKind.REGISTER:
            other = general_register(instruction.op1_register)
            return other is not None and self._is_table_sum(index, name, other)
        # add TABLE(,%rax,8), %rdx and the like: an entry from memory, the base in the register.
        return False

    def _is_table_sum(self, index: int, one: str, other: str) -> bool:
        line = self._line(index)
        for entry, base in ((one, other), (other, one)):
            load = self._load(line, entry)
            if load is not None and self._is_entry(index, line, load, base):
                return True
        return False

    def _load(self, line: Sequence[Instruction], entry: str) -> int | None:
        """The position in `line` of what loads the register with a signed 32-bit number from memory."""
        load = self._maker(line, entry, 0)
        if load is None:
            return None
        instruction = line[load]
        if instruction.mnemonic == Mnemonic.CDQE or (
            instruction.mnemonic == Mnemonic.MOVSXD and instruction.op1_kind == OpKind.REGISTER
        ):
            extended = instruction.mnemonic == Mnemonic.CDQE
            narrow = "rax" if extended else general_register(instruction.op1_register)
            load = self._maker(line, narrow, load + 1)
            if load is None or line[load].mnemonic != Mnemonic.MOV:
                return None
            instruction = line[load]
        elif instruction.mnemonic != Mnemonic.MOVSXD and not self._is_reload(instruction, entry):
            return None
        is_load = instruction.op1_kind == OpKind.MEMORY and instruction.op0_kind == OpKind.REGISTER
        return load if is_load else None

    @staticmethod
    def _is_reload(instruction: Instruction, name: str) -> bool:
        """A whole register comes back from the stack frame."""
        frame = general_register(instruction.memory_base) in ("rsp", "rbp") and not instruction.memory_index
        return frame and instruction.mnemonic == Mnemonic.MOV and _is_whole(instruction.op0_register, name)

    def _is_entry(self, index: int, line: Sequence[Instruction], load: int, base: str) -> bool:
        """What line[load] loads is an entry of the table that goes with `base` before instruction `index`."""
        instruction = line[load]
        parts = (general_register(instruction.memory_base), general_register(instruction.memory_index))
        made = self._maker(line, base, 0)
        if base in parts and (made is None or made > load):
            # One register is the table's address, for the load and for the sum. (A walk over all ways meets
            # constants of other ways, too.)
            tables = [taken_address(line[made])] if made is not None else self._constants_in(index, base)
            return not tables or any(table is None or table in self._bases for table in tables)
        origin = taken_address(line[made]) if made is not None else None
        table = rip_target(instruction)
        if table is None:
            # Code that is not optimised takes the table's address twice.
            makers = (self._maker(line, part, load + 1) for part in parts)
            taken = (taken_address(line[maker]) for maker in makers if maker is not None)
            table = next((address for address in taken if address is not None), None)
        if origin in self._bases and self._is_reload(
            instruction, str(general_register(instruction.op0_register))
        ):
            # Nothing but an entry of a table, here one that was kept for later, is ever added to its address.
            return True
        if origin is None or table is None:
            return False
        if origin in self._function:
            self._add_labels(origin, table)
            return True
        # The index may be a constant that is part of the address.
        is_constant = rip_target(instruction) is not None and table >= origin and (table - origin) % 4 == 0
        return origin in self._bases and (table == origin or is_constant)

    def _add_labels(self, origin: int, table: int) -> None:
        """Of a table whose end nobody knows: entries that lead into the function, until one is far away."""
        for number in self._numbers(table):
            if not -_FARTHEST_LABEL < number < _FARTHEST_LABEL:
                return
            if origin + number in self._function:
                self.labels.add(origin + number)

    def _constants_in(self, index: int, name: str) -> set[int]:
        """The addresses that `lea` instructions may have put into the register before instruction `index`."""
        found: set[int] = set()
        waiting, seen = [index], {index}
        while waiting and len(seen) < _LONGEST_WALK:
            for before in self._before(waiting.pop()):
                instruction = self._instructions[before]
                table = taken_address(instruction)
                if writes(instruction, name):
                    if table is not None:
                        found.add(table)
                elif before not in seen and not (is_call(instruction) and name not in _KEPT_BY_CALLS):
                    seen.add(before)
                    waiting.append(before)
        return found

    @staticmethod
    def _maker(line: Sequence[Instruction], name: str | None, first: int) -> int | None:
        """The position in `line`, from `first` on, of the nearest instruction that writes the register."""
        if name is None:
            return None
        return next((position for position in range(first, len(line)) if writes(line[position], name)), None)

    def _line(self, index: int) -> list[Instruction]:
        """The instructions before `index`, nearest first, up to where several ways meet."""
        line: list[Instruction] = []
        while len(line) < _LONGEST_LINE:
            before = self._before(index)
            if len(before) != 1 or is_call(self._instructions[before[0]]):
                break
            index = before[0]
            line.append(self._instructions[index])
        return line


def writes(instruction: Instruction, name: str) -> bool:
    """The instruction changes the general register `name`, or a part of it."""
    for used in _INFO.info(instruction).used_registers():
        if used.access in _WRITES and general_register(used.register) == name:
            return True
    return instruction.mnemonic == Mnemonic.SYSCALL and name in ("rax", "rcx", "r11")


def _is_whole(number: int, name: str) -> bool:
    """The decoder's register `number` is all 64 bits of the general register `name`."""
    return number == int(register(name))


def taken_address(instruction: Instruction) -> int | None:
    """The address that a `lea` off the instruction pointer takes."""
    return rip_target(instruction) if instruction.mnemonic == Mnemonic.LEA else None


def _is_conditional_move(instruction: Instruction) -> bool:
    return instruction.mnemonic in _CONDITIONAL_MOVES


_CONDITIONAL_MOVES = frozenset(
    value
    for key, value in vars(Mnemonic).items()
    if isinstance(value, int) and re.fullmatch("CMOV[A-Z]+", key)
)
