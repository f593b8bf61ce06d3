"""What the verdicts about one module are made from, read once and kept.

A `ModuleContext` works on the file's own addresses (those that nm and objdump print); `bias` is what is
added to them in the target, 0 for a file that nobody runs. Nothing here trusts the file: every table is
bounded by the size of what was read.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from sidestep.address import Range
from sidestep.arch.x86_64.code import FunctionCode
from sidestep.arch.x86_64.computed_jumps import ComputedJumps, computed_jumps, taken_address
from sidestep.arch.x86_64.jump_tables import JumpTables, find_jump_tables
from sidestep.arch.x86_64.placement import cancellable_calls, signal_returns
from sidestep.arch.x86_64.references import CodeBytes, ReferenceTable, Taken, taken_addresses
from sidestep.errors import BLACKLISTED, CANCELLATION, Reason
from sidestep.safety.references import References
from sidestep.safety.restartable import SectionedFile, restartable_sequences

if TYPE_CHECKING:
    from sidestep.safety.leads import FunctionLeads

# Bytes of code whose decoded functions are kept; an instruction takes about 150 bytes.
_MOST_KEPT = 1 << 20
# What is longer counts as undecodable behind this many bytes.
_LARGEST_FUNCTION = 1 << 20
_GAP = 64
# Bytes of code whose short branches are put into a table in the time of one search.
_SHORT_SEARCH = 500
_LONGEST_TABLE = 1 << 14  # bytes

Memory = Callable[[int, int], bytes]
"""Original bytes of the target, without our own probes: (run-time address, size) to bytes."""


class LoadedSegment(Protocol):
    """A segment of the file: `address` and `file_size` in bytes."""

    @property
    def address(self) -> int: ...
    @property
    def file_size(self) -> int: ...


class LoadedFile(SectionedFile, Protocol):
    """The file behind a module (symbols.elf.ElfFile)."""

    @property
    def build_id(self) -> str | None: ...
    @property
    def text(self) -> Sequence[Range]: ...
    @property
    def loads(self) -> Sequence[LoadedSegment]: ...
    @property
    def is_pic(self) -> bool: ...
    @property
    def relative_targets(self) -> Sequence[int]: ...


class Bounds(Protocol):
    """One function (symbols.functions.Function)."""

    @property
    def name(self) -> str: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


class Frames(Protocol):
    """The unwind entries of the file (symbols.eh_frame.FdeTable)."""

    @property
    def starts(self) -> Sequence[int]: ...
    def landing_pads(self, start: int, /) -> list[int] | None: ...


class Functions(Protocol):
    """The functions of the file (symbols.functions.FunctionTable)."""

    @property
    def starts(self) -> Sequence[int]: ...
    @property
    def frames(self) -> Frames: ...
    def at(self, start: int, /) -> Bounds | None: ...
    def containing(self, address: int, /) -> Bounds | None: ...


class SpecialCode(NamedTuple):
    """Code that does not move, in the file's addresses: what it is, and why probes are refused."""

    where: Range
    what: str
    reason: Reason


@dataclass
class Circumstances:
    """What is the same for all modules of a target, and may be different for each batch of probes.

    fault_rule      why instructions that may fault do not move: the program has handlers of its own for
                    SIGSEGV, SIGBUS, SIGILL or SIGFPE, or may still install some; None: it has none
    shadow_stacks   a thread has a shadow stack, on which calls cannot be imitated
    forbidden       run-time addresses that are not probed, each with what they are (Sidestep's own areas)
    probes          about how many probes will be placed: chooses how references are looked up
    progress        called with (module, bytes done, bytes in all) while a large one is searched
    """

    fault_rule: Reason | None = None
    shadow_stacks: bool = False
    forbidden: Sequence[tuple[Range, str]] = ()
    probes: int = 1
    progress: Callable[[str, int, int], None] | None = None


@dataclass
class ModuleContext:
    """One module of a target, or one file.

    name            for messages
    bias            run-time address minus the file's address
    memory          original bytes of the target; None: there is only the file
    is_file         the code is a private mapping of a file (the vdso is not)
    is_copied       code of the file was replaced by a copy in memory that is no file
    is_shared       the code is mapped MAP_SHARED
    """

    file: LoadedFile
    functions: Functions
    name: str = ""
    bias: int = 0
    memory: Memory | None = None
    is_file: bool = True
    is_copied: bool = False
    is_shared: bool = False
    batch: Circumstances = field(default_factory=Circumstances, repr=False)
    leads: dict[int, FunctionLeads] = field(default_factory=dict, repr=False)
    _found: dict[int, Bounds] = field(default_factory=dict, repr=False)
    _codes: dict[int, FunctionCode] = field(default_factory=dict, repr=False)
    _short: ReferenceTable | None = field(default=None, repr=False)
    _kept: int = field(default=0, repr=False)
    _jumps: dict[int, ComputedJumps] = field(default_factory=dict, repr=False)

    # Bytes

    @cached_property
    def code(self) -> list[CodeBytes]:
        """The executable bytes, ascending."""
        return [CodeBytes(each.start, self.file.read(each.start, each.size)) for each in self.file.text]

    @cached_property
    def contents(self) -> list[CodeBytes]:
        """Everything that the file puts into memory, ascending."""
        known = {each.start: each for each in self.code}
        return sorted(
            known.get(load.address) or CodeBytes(load.address, self.file.read(load.address, load.file_size))
            for load in self.file.loads if load.file_size
        )  # fmt: skip

    @cached_property
    def text(self) -> Sequence[Range]:
        return self.file.text

    @cached_property
    def special_code(self) -> list[SpecialCode]:
        """Code that does not move, in the file's addresses."""

        def special(ranges: Iterable[Range], what: str, reason: Reason = BLACKLISTED) -> list[SpecialCode]:
            return [SpecialCode(where, what, reason) for where in ranges]

        found = special(restartable_sequences(self.file), "a restartable sequence")
        for start, content in self.code:
            found += special(signal_returns(content, start), "the signal return path")
            found += special(cancellable_calls(content, start), "a cancellable system call", CANCELLATION)
        return found

    def bytes_at(self, start: int, end: int) -> bytes:
        """The code from `start` up to `end`, cut where the executable bytes end."""
        for stretch in self.code:
            if stretch.start <= start < stretch.end:
                return stretch.content[start - stretch.start : max(end, start) - stretch.start]
        return b""

    def window(self, first: int, last: int, around: int) -> CodeBytes:
        """The executable bytes from `first` up to `last` of the stretch that holds the address `around`."""
        for start, content in self.code:
            if start <= around < start + len(content):
                first = max(first, start)
                return CodeBytes(first, content[first - start : last - start])
        return CodeBytes(first, b"")

    # Functions

    def function_at(self, address: int) -> Bounds | None:
        """The innermost function, or part of one, whose bytes include the address."""
        starts = self._starts
        index = bisect_right(starts, address) - 1
        if index < 0:
            return None
        start = starts[index]
        function = self._found.get(start)
        if function is None:
            # What has an unwind entry of its own is a function. A label may be inside of one.
            function = (
                self.functions.at(start) if start in self._framed else self.functions.containing(address)
            )
            if function is not None and function.start == start:
                self._found[start] = function
        if function is not None and function.start <= address < function.end:
            return function
        return self.functions.containing(address)

    @cached_property
    def _starts(self) -> Sequence[int]:
        return self.functions.starts

    @cached_property
    def _framed(self) -> frozenset[int]:
        return frozenset(self.functions.frames.starts)

    def code_of(self, function: Bounds) -> FunctionCode:
        """The function's instructions; decoded as they are asked for, kept for the next question."""
        code = self._codes.get(function.start)
        if code is None:
            end = min(function.end, function.start + _LARGEST_FUNCTION)
            content = self.bytes_at(function.start, end)
            self._kept += len(content)
            if self._kept > _MOST_KEPT:
                self._codes.clear()
                self.leads.clear()
                self._kept = len(content)
            code = FunctionCode(function.start, content, self._gap_behind(function.start + len(content)))
            self._codes[function.start] = code
        return code

    def _gap_behind(self, end: int) -> bytes:
        """The bytes between a function's end and the next thing that has a name or an unwind entry."""
        starts = self._starts
        index = bisect_left(starts, end)
        limit = min(starts[index] if index < len(starts) else end + _GAP, end + _GAP)
        return self.bytes_at(end, limit)

    # What leads to code

    @cached_property
    def references(self) -> References:
        told = self.batch.progress
        progress = None if told is None else partial(told, self.name)
        return References(self.code, self.contents, self.file.is_pic, self.batch.probes, progress)

    @property
    def short_branches(self) -> ReferenceTable | None:
        """Every possible branch with an 8-bit displacement, if so many questions are expected that the table
        is worth it."""
        size = sum(len(each.content) for each in self.code)
        if self._short is None and self.batch.probes * _SHORT_SEARCH > size:
            self._short = ReferenceTable.build_short(self.code)
        return self._short

    @cached_property
    def named_addresses(self) -> array[int]:
        """The code addresses that something other than an instruction leads to, ascending: starts of
        functions and labels, pointers in data, labels of jump tables."""
        return array("Q", sorted({*self._starts, *self.file.relative_targets, *self.jump_tables.labels}))

    def named_starts(self, first: int, last: int) -> Sequence[int]:
        """The starts of functions, parts and labels from `first` up to `last`."""
        starts = self._starts
        return starts[bisect_left(starts, first) : bisect_left(starts, last)]

    def why_named(self, address: int) -> str:
        """What leads to one of the `named_addresses`."""
        if first_in(self._starts, address, address + 1) is not None:
            function = self.functions.at(address)
            return f"{function.name if function is not None else 'a label'} starts at {address:#x}"
        if first_in(self.file.relative_targets, address, address + 1) is not None:
            return f"a pointer in the data leads to {address:#x}"
        return f"a jump table leads to {address:#x}"

    @cached_property
    def taken(self) -> Taken:
        """The addresses that any `lea` takes."""
        return taken_addresses(self.code)

    @cached_property
    def jump_tables(self) -> JumpTables:
        return find_jump_tables(self.taken.targets, self.contents, self.text)

    @cached_property
    def _tables_in_code(self) -> list[int]:
        """Jump tables that stand inside of functions, ascending."""
        bases = {
            base
            for base in self.jump_tables.bases
            if first_in(self._starts, base, base + 1) is None and any(base in each for each in self.text)
        }
        if not bases:
            return []
        places = zip(self.taken.targets, self.taken.fields, strict=True)
        return sorted({base for base, field in places if base in bases and self._takes(field, base)})

    def _takes(self, field: int, address: int) -> bool:
        """The `lea` with its displacement at `field` is one, not bytes that look like it."""
        function = self.function_at(field)
        instruction = self.code_of(function).containing(field) if function is not None else None
        return instruction is not None and taken_address(instruction) == address

    def tables_in(self, first: int, last: int) -> list[int]:
        """The jump tables that stand in the code from `first` up to `last`."""
        tables = self._tables_in_code
        return tables[bisect_left(tables, first) : bisect_left(tables, last)]

    def computed_jumps(self, code: FunctionCode) -> ComputedJumps:
        """What is known about where the function's computed jumps lead."""
        if code.start not in self._jumps:
            self._jumps[code.start] = computed_jumps(code, self.jump_tables, self._numbers)
        return self._jumps[code.start]

    def _numbers(self, address: int) -> Sequence[int]:
        """The signed 32-bit numbers in the file from an address on."""
        for start, content in self.contents:
            if start <= address < start + len(content):
                piece = content[address - start : address - start + _LONGEST_TABLE]
                return array("i", piece[: len(piece) // 4 * 4])
        return ()

    def landing_pads(self, code: FunctionCode) -> list[int] | None:
        """Where exceptions land that are raised in the function; None: unknown, its tables are damaged."""
        frames = self.functions.frames
        starts = frames.starts
        pads: list[int] = []
        for index in range(max(bisect_right(starts, code.start) - 1, 0), bisect_left(starts, code.end)):
            found = frames.landing_pads(starts[index])
            if found is None:
                return None
            pads += found
        return pads


def first_in(values: Sequence[int] | array[int], first: int, last: int) -> int | None:
    """The first of `values` (ascending) from `first` up to, not including, `last`."""
    index = bisect_left(values, first)
    return values[index] if index < len(values) and values[index] < last else None
