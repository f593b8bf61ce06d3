"""Turns records into events.

`EventDecoder` unpacks a run of equal records in one go; an `Event` makes the names and Python values of its
record only when they are asked for, since most events are merely counted, filtered or dropped.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

from sidestep.events.layout import RECORD_CPU_SHIFT
from sidestep.events.record import COMM_SIZE, EventProgram, Field
from sidestep.spec import FetchType

Raw: TypeAlias = tuple[Any, ...]
"""tsc, tid, pid and CPU, then fault words (int), one item a field (int or bytes), return addresses (int)."""

_LEADING: Final = 3
_PID_MASK: Final = (1 << RECORD_CPU_SHIFT) - 1


class Fault:
    """Stands for a value whose memory could not be read. There is one, FAULT."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "(fault)"

    def __bool__(self) -> bool:
        return False


FAULT: Final = Fault()


class Text(str):
    r"""A string of the target. Bytes that are not UTF-8 are written as `\xNN`; `raw` has them as they were.

    `truncated`: there was more than the limit, of which this is the beginning.
    """

    __slots__ = ("raw", "truncated")
    raw: bytes
    truncated: bool

    def __new__(cls, raw: bytes, *, truncated: bool = False) -> Text:
        text = super().__new__(cls, raw.decode("utf-8", "backslashreplace"))
        text.raw, text.truncated = raw, truncated
        return text

    @property
    def is_utf8(self) -> bool:
        return self.encode() == self.raw


Value: TypeAlias = int | str | Fault | list[int]
"""Text is `Text`, an address that was asked for as a symbol a plain str."""


class Column(NamedTuple):
    """Where a field is among the items of a record, and what makes its value of that item."""

    field: Field
    position: int
    convert: Callable[[Any], Value]

    def is_fault(self, raw: Raw) -> bool:
        bit = self.field.fault_bit
        if bit is None:
            return False
        word: int = raw[_LEADING + bit // 64]
        return word >> bit % 64 & 1 != 0


class EventDecoder:
    """Takes apart the records of one event. `symbolize` makes `malloc+0x4` of an address."""

    def __init__(self, program: EventProgram, symbolize: Callable[[int], str] = hex) -> None:
        self.program, self.symbolize = program, symbolize
        self.format = program.format
        first = _LEADING + self.format.fault_words
        self.columns = tuple(
            Column(field, position, self._converter(field))
            for position, field in enumerate(self.format.fields, first)
        )
        self._plain = tuple((column.field.name, column.position, column.convert) for column in self.columns)
        self._fault_words = slice(_LEADING, first)
        self._frames = slice(first + len(self.format.fields), None)
        words = f"{self.format.fault_words}Q" if self.format.fault_words else ""
        fields = "".join("Q" if field.is_number else f"{field.size}s" for field in self.format.fields)
        frames = f"{self.format.stack_depth}Q" if self.format.stack_depth else ""
        self._record = struct.Struct(f"<8xQII{words}{fields}{frames}")
        assert self._record.size == self.format.size

    def unpack(self, data: bytes) -> Iterator[Raw]:
        """The items of each record in `data`, which holds whole records."""
        return self._record.iter_unpack(data)

    def has_fault(self, raw: Raw) -> bool:
        """Whether some field's memory could not be read."""
        return any(raw[self._fault_words])

    def values(self, raw: Raw) -> Iterator[tuple[Field, Value]]:
        """The value of each field, cut and signed by its type."""
        for column in self.columns:
            yield column.field, FAULT if column.is_fault(raw) else column.convert(raw[column.position])

    def arguments(self, raw: Raw) -> dict[str, Value]:
        """The value of each field by its name."""
        if self.format.fault_words and self.has_fault(raw):
            found = {field.name: value for field, value in self.values(raw)}
        else:
            found = {name: convert(raw[position]) for name, position, convert in self._plain}
        if self.program.stack_name is not None:
            found[self.program.stack_name] = self.frames(raw)
        return found

    def frames(self, raw: Raw) -> list[int]:
        """The return addresses, the probepoint first."""
        return list(itertools.takewhile(bool, raw[self._frames]))

    def _converter(self, field: Field) -> Callable[[Any], Value]:
        if field.is_comm:
            return _comm
        if field.is_string:
            limit = self.format.string_limit
            return lambda data: _string(data, limit)
        number = _number(field.type)
        if field.is_array:
            return _array(field.type, number)
        if field.type.kind == "symbol":
            return self.symbolize
        return number


class Event:
    """One hit of a probe that was recorded. `time` is in seconds of CLOCK_MONOTONIC."""

    __slots__ = ("decoder", "raw", "time")

    def __init__(self, decoder: EventDecoder, raw: Raw, time: float) -> None:
        self.decoder, self.raw, self.time = decoder, raw, time

    @property
    def name(self) -> str:
        return self.decoder.program.name

    @property
    def where(self) -> str:
        """The probepoint, as symbol+0xOFFSET."""
        return self.decoder.program.where

    @property
    def index(self) -> int:
        """The probe's index in the session."""
        return self.decoder.program.index

    @property
    def tsc(self) -> int:
        tsc: int = self.raw[0]
        return tsc

    @property
    def tid(self) -> int:
        """The thread, as its own process sees it (in its pid namespace)."""
        tid: int = self.raw[1]
        return tid

    @property
    def pid(self) -> int:
        pid: int = self.raw[2] & _PID_MASK
        return pid

    @property
    def cpu(self) -> int:
        """The CPU that it happened on, modulo 1024."""
        cpu: int = self.raw[2] >> RECORD_CPU_SHIFT
        return cpu

    @property
    def fields(self) -> list[tuple[Field, Value]]:
        return list(self.decoder.values(self.raw))

    @property
    def args(self) -> dict[str, Value]:
        """The fetch arguments: int, str, list of int, or FAULT. Text is as it was (see Text)."""
        return self.decoder.arguments(self.raw)

    @property
    def stack(self) -> list[int]:
        """Return addresses, the probepoint first; empty unless stacks are recorded."""
        return self.decoder.frames(self.raw)

    @property
    def stack_symbols(self) -> list[str]:
        return [self.decoder.symbolize(address) for address in self.stack]

    def __repr__(self) -> str:
        return f"<Event {self.name} time={self.time:.6f} tid={self.tid} {self.args}>"


def _comm(data: bytes) -> Text:
    return Text(data[:COMM_SIZE].split(b"\0", 1)[0])


def _string(data: bytes, limit: int) -> Value:
    """The field is a u64, the number of bytes that could be read with the limit of its own, if it has one,
    and those bytes, at most `limit` + 1."""
    length, own = int.from_bytes(data[:4], "little"), int.from_bytes(data[4:8], "little")
    limit = min(own or limit, limit)
    length = min(length, limit + 1)
    end = data.find(b"\0", 8, 8 + length)
    if end >= 0:
        return Text(data[8:end])
    return FAULT if length <= limit else Text(data[8 : 8 + limit], truncated=True)


def _number(kind: FetchType) -> Callable[[int], int]:
    """Cuts a u64 to the bits of a type, with its sign."""
    shift = kind.bitfield.offset if kind.bitfield is not None else 0
    mask = (1 << kind.value_bits) - 1
    sign = 1 << kind.value_bits - 1 if kind.signed else 0
    if sign:
        return lambda value: ((value >> shift & mask) ^ sign) - sign
    if shift or mask != (1 << 64) - 1:
        return lambda value: value >> shift & mask
    return lambda value: value


def _array(kind: FetchType, number: Callable[[int], int]) -> Callable[[bytes], Value]:
    elements = struct.Struct(f"<{kind.count}{'BHIQ'[kind.element_size.bit_length() - 1]}")

    def convert(data: bytes) -> Value:
        return [number(element) for element in elements.unpack_from(data)]

    return convert
