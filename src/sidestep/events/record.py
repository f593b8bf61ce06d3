"""What one event is: which values it records, and where each of them lies in its record.

The machine code that writes a record and the reader that takes it apart are both derived from the
`RecordFormat` here. A record is `RECORD_HEADER_SIZE` bytes, then the fault words, then the fields, then the
stack. All records of one event have the same size, a multiple of 8.

    +0   u16 magic, u16 size / 8, u32 event index
    +8   u64 time stamp counter
    +16  u32 tid, u32 pid | cpu << 22; tid and pid as the process sees them
    +24  u64 fault words: bit N set when the memory of the field with `fault_bit` N could not be read
         fields: a number is a u64, not yet cut to its type; an array is its elements as they were in memory;
         a string is a u64 (bytes that could be read | its own limit << 32, 0: the event's) and up to limit
         + 1 bytes; $comm is 16 bytes stack: u64 return addresses, 0 behind the last
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sidestep.errors import NOT_SUPPORTED, ProbeError
from sidestep.events.layout import (
    DEFAULT_STRING_LIMIT,
    LARGEST_RECORD,
    PAGE_SIZE,
    RECORD_HEADER_SIZE,
    RECORD_MAGIC,
)
from sidestep.spec import (
    Argument,
    Comm,
    Condition,
    Dereference,
    Fetch,
    FetchArgument,
    FetchType,
    Memory,
    StackSlot,
    SymbolMemory,
)

COMM_SIZE = 16
STRING_LIMIT_SHIFT = 32
LARGEST_STRING = PAGE_SIZE - 1
LARGEST_ARRAY = PAGE_SIZE
REGISTER_ARGUMENTS = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")
"""The registers of the first integer arguments (System V ABI, 3.2.3)."""


@dataclass(frozen=True, slots=True)
class Field:
    """A fetch argument in a record. `offset` is from the record's start; `size` in bytes, a multiple of 8."""

    name: str
    fetch: Fetch
    type: FetchType
    offset: int
    size: int
    fault_bit: int | None

    @property
    def is_comm(self) -> bool:
        return isinstance(self.fetch, Comm)

    @property
    def is_string(self) -> bool:
        return self.type.kind == "string" and not self.is_comm

    @property
    def is_array(self) -> bool:
        return self.type.count is not None and not self.is_string

    @property
    def is_number(self) -> bool:
        return not (self.is_comm or self.is_string or self.is_array)


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """The layout of one event's records."""

    fields: tuple[Field, ...]
    fault_words: int
    stack_offset: int
    stack_depth: int
    string_limit: int
    size: int

    def header_word(self, event: int, magic: int = RECORD_MAGIC) -> int:
        """The first 8 bytes of a record, as a number."""
        return magic | self.size // 8 << 16 | event << 32


@dataclass(frozen=True)
class EventProgram:
    """What is done at a hit: whom to skip, what to record. `index` is the probe's index in the shared memory.

    `tids` None and `comms` empty mean everybody. `at_entry` says that the probe is at a function's first
    instruction, where the return address is on top of the stack; `$argN` beyond the sixth need it.
    `matched_index` counts what passed the filters, where there are any: events fired, delivered or lost.
    Raises ProbeError when the record would be too large.
    """

    index: int
    name: str
    where: str  # symbol+0x0, as events show it
    arguments: tuple[FetchArgument, ...] = ()
    condition: Condition | None = None
    tids: frozenset[int] | None = None
    comms: tuple[bytes, ...] = ()
    stack_depth: int = 0
    stack_name: str | None = None  # of the field that the backtrace is, where it is one
    string_limit: int = DEFAULT_STRING_LIMIT
    at_entry: bool = True
    matched_index: int | None = None
    address: int = 0  # run-time address of the probepoint: $ip, and the first frame of the stack
    format: RecordFormat = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "format", self._lay_out())

    def _lay_out(self) -> RecordFormat:
        if not 0 < self.string_limit <= LARGEST_STRING:
            raise ProbeError(self.name, NOT_SUPPORTED, f"strings have 1 to {LARGEST_STRING} bytes")
        faulting = [argument for argument in self.arguments if can_fault(argument.fetch)]
        fault_words = -(-len(faulting) // 64)
        offset = RECORD_HEADER_SIZE + 8 * fault_words
        fields: list[Field] = []
        fault_bit = 0
        for argument in self.arguments:
            size = _field_size(argument, self.string_limit, self.name)
            bit = None
            if can_fault(argument.fetch):
                bit, fault_bit = fault_bit, fault_bit + 1
            fields.append(Field(argument.name, argument.fetch, argument.type, offset, size, bit))
            offset += size
        size = offset + 8 * self.stack_depth
        if size > LARGEST_RECORD:
            raise ProbeError(
                self.name, NOT_SUPPORTED, f"its events would have {size} bytes, {LARGEST_RECORD} is the limit"
            )
        return RecordFormat(tuple(fields), fault_words, offset, self.stack_depth, self.string_limit, size)


def can_fault(fetch: Fetch) -> bool:
    """Whether fetching reads memory that may not be there."""
    match fetch:
        case Dereference() | Memory() | SymbolMemory() | StackSlot():
            return True
        case Argument(number=number):
            return number > len(REGISTER_ARGUMENTS)
        case _:
            return False


def _field_size(argument: FetchArgument, string_limit: int, event: str) -> int:
    kind = argument.type
    if isinstance(argument.fetch, Comm):
        return COMM_SIZE
    if kind.kind == "string":
        if kind.count is not None:
            raise ProbeError(event, NOT_SUPPORTED, f"{argument}: arrays of strings")
        return 8 + _rounded(string_limit + 1)
    if kind.count is None:
        return 8
    size = kind.count * kind.element_size
    if not can_fault(argument.fetch):
        raise ProbeError(event, NOT_SUPPORTED, f"{argument}: an array is read from memory")
    if size > LARGEST_ARRAY:
        raise ProbeError(event, NOT_SUPPORTED, f"{argument}: an array has at most {LARGEST_ARRAY} bytes")
    return _rounded(size)


def _rounded(size: int) -> int:
    return -(-size // 8) * 8
