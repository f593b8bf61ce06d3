"""What a probe text means: the nodes for places and fetch arguments, without any of their spelling.

Every node that can turn out wrong later (an unknown symbol, an offset inside an instruction) keeps its
`column`, counted in characters from 0, so that a caret can be put under it. Columns take no part in
comparisons and hashes: two texts that mean the same give equal trees. `str(node)` is its canonical text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from sidestep.spec.words import needs_no_quotes, quote

Kind: TypeAlias = Literal["p", "r"]
TypeKind: TypeAlias = Literal["u", "s", "x", "string", "symbol"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A part of a probe text; `column` is where it starts, or where its operator stands."""

    column: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Where(Node):
    """A probepoint: `[MODULE:]SYMBOL[+OFFSET]`, or `[MODULE:]0xOFFSET` with `symbol` None.

    `module` is a glob over file names, `symbol` a name or a glob. Without a symbol, `offset` is an ELF
    virtual address of the module. C++ names hold characters that globs use (`f(char*)`, `operator[]`):
    look for the exact name first, for the glob only when there is none.
    """

    module: str | None
    symbol: str | None
    offset: int = 0
    symbol_column: int = field(default=0, compare=False, repr=False, kw_only=True)
    offset_column: int = field(default=0, compare=False, repr=False, kw_only=True)

    @property
    def is_glob(self) -> bool:
        """Whether the symbol may stand for several: it holds `*`, `?` or `[`."""
        return self.symbol is not None and any(character in self.symbol for character in "*?[")

    def __str__(self) -> str:
        module = "" if self.module is None else f"{self.module}:"
        if self.symbol is None:
            return f"{module}{self.offset:#x}"
        return f"{module}{self.symbol}+{self.offset:#x}" if self.offset else f"{module}{self.symbol}"


@dataclass(frozen=True, slots=True)
class BitField(Node):
    """`width` bits from bit `offset` (0 is the lowest) of a little-endian word of `container_bits`."""

    width: int
    offset: int
    container_bits: int


@dataclass(frozen=True, slots=True)
class FetchType(Node):
    """How a fetched value is read and shown.

    `bits` is the size of one element: that of the container for a bit field, 8 for a string (its
    characters), 64 for a symbol. `count` is the number of elements of an array, None for a single value.
    """

    kind: TypeKind
    bits: int
    count: int | None = None
    bitfield: BitField | None = None

    @property
    def signed(self) -> bool:
        return self.kind == "s"

    @property
    def element_size(self) -> int:
        """Bytes of one element."""
        return self.bits // 8

    @property
    def value_bits(self) -> int:
        """Bits of the value itself: the width of a bit field, `bits` of everything else."""
        return self.bits if self.bitfield is None else self.bitfield.width

    @property
    def minimum(self) -> int:
        """The lowest value that a number of this type can have."""
        return -(1 << (self.value_bits - 1)) if self.signed else 0

    @property
    def maximum(self) -> int:
        """The highest value that a number of this type can have."""
        return (1 << (self.value_bits - 1 if self.signed else self.value_bits)) - 1

    def __str__(self) -> str:
        if self.bitfield is not None:
            return f"b{self.bitfield.width}@{self.bitfield.offset}/{self.bitfield.container_bits}"
        name = self.kind if self.kind in ("string", "symbol") else f"{self.kind}{self.bits}"
        return name if self.count is None else f"{name}[{self.count}]"


X64 = FetchType("x", 64)
STRING = FetchType("string", 8)


@dataclass(frozen=True, slots=True)
class Register(Node):
    """`%di`: a register, by its name in the kernel's pt_regs (`ip sp flags ax .. r15`)."""

    name: str

    def __str__(self) -> str:
        return f"%{self.name}"


@dataclass(frozen=True, slots=True)
class Argument(Node):
    """`$argN`: an argument of the function by the ABI, N from 1. In a return probe: its value at entry."""

    number: int

    def __str__(self) -> str:
        return f"$arg{self.number}"


@dataclass(frozen=True, slots=True)
class StackSlot(Node):
    """`$stackN`: the 8 bytes at stack pointer + 8 * N, N from 0."""

    number: int

    def __str__(self) -> str:
        return f"$stack{self.number}"


@dataclass(frozen=True, slots=True)
class StackPointer(Node):
    """`$stack`: the stack pointer itself."""

    def __str__(self) -> str:
        return "$stack"


@dataclass(frozen=True, slots=True)
class ReturnValue(Node):
    """`$retval`: what the function returned (return probes only)."""

    def __str__(self) -> str:
        return "$retval"


@dataclass(frozen=True, slots=True)
class Comm(Node):
    r"""`$comm`: the name of the thread, a string of at most 15 bytes."""

    def __str__(self) -> str:
        return "$comm"


@dataclass(frozen=True, slots=True)
class Immediate(Node):
    r"""`\5`: a constant, -2**63 .. 2**64 - 1."""

    value: int

    def __str__(self) -> str:
        return f"\\{self.value}"


@dataclass(frozen=True, slots=True)
class Memory(Node):
    """`@ADDR`: what is in memory at a run-time address."""

    address: int

    def __str__(self) -> str:
        return f"@{self.address:#x}"


@dataclass(frozen=True, slots=True)
class SymbolMemory(Node):
    """`@[MODULE:]SYM[+OFFSET]`: what is in memory at a variable. Not a glob; `offset` may be negative."""

    module: str | None
    symbol: str
    offset: int = 0

    def __str__(self) -> str:
        name = self.symbol if self.module is None else f"{self.module}:{self.symbol}"
        shown = name if needs_no_quotes(self.module, self.symbol) else quote(name)
        return f"@{shown}{self.offset:+d}" if self.offset else f"@{shown}"


@dataclass(frozen=True, slots=True)
class Dereference(Node):
    """`+OFFSET(FETCH)`: what is in memory at the value of `inner` plus `offset` (32 bits, signed).

    `user` notes the `u` of `+uOFFSET(FETCH)`; in a process all memory is user memory.
    """

    offset: int
    inner: Fetch
    user: bool = False

    def __str__(self) -> str:
        sign, user = "-" if self.offset < 0 else "+", "u" if self.user else ""
        return f"{sign}{user}{abs(self.offset)}({self.inner})"


Fetch: TypeAlias = (
    Register
    | Argument
    | StackSlot
    | StackPointer
    | ReturnValue
    | Comm
    | Immediate
    | Memory
    | SymbolMemory
    | Dereference
)


def default_type(fetch: Fetch) -> FetchType:
    """The type of a fetch argument that names none."""
    return STRING if isinstance(fetch, Comm) else X64


@dataclass(frozen=True, slots=True)
class FetchArgument(Node):
    """`NAME=FETCH:TYPE`: one field of the event. Strings and arrays always read memory (or `$comm`)."""

    name: str
    fetch: Fetch
    type: FetchType = X64

    def __str__(self) -> str:
        return f"{self.name}={with_type(self.fetch, self.type)}"


def with_type(fetch: Fetch, type: FetchType) -> str:
    """FETCH[:TYPE], the type only where it is not the default."""
    return str(fetch) if type == default_type(fetch) else f"{fetch}:{type}"
