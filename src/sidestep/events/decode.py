"""Turns records into events.

`EventDecoder` unpacks a run of equal records in one go; an `Event` makes the names and Python values of its
record only when they are asked for, since most events are merely counted, filtered or dropped.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Final, TypeAlias

from sidestep.events.clock import Clock
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


class TruncatedText(str):
    """A string that was longer than the limit; it ends with `...`, which is not the target's."""

    __slots__ = ()


Value: TypeAlias = int | str | Fault | list[int]


class EventDecoder:
    """Takes apart the records of one event. `symbolize` makes `malloc+0x4` of an address."""

    def __init__(self, program: EventProgram, symbolize: Callable[[int], str] = hex) -> None:
        self.program, self.symbolize = program, symbolize
        self.format = program.format
        first = _LEADING + self.format.fault_words
        self._converters = [
            (field, position, self._converter(field))
            for position, field in enumerate(self.format.fields, first)
        ]
        self._first_frame = first + len(self.format.fields)
        words = f"{self.format.fault_words}Q" if self.format.fault_words else ""
        fields = "".join("Q" if field.is_number else f"{field.size}s" for field in self.format.fields)
        frames = f"{self.format.stack_depth}Q" if self.format.stack_depth else ""
        self._record = struct.Struct(f"<8xQII{words}{fields}{frames}")
        assert self._record.size == self.format.size

    def unpack(self, data: bytes) -> Iterator[Raw]:
        """The items of each record in `data`, which holds whole records."""
        return self._record.iter_unpack(data)

    def values(self, raw: Raw) -> Iterator[tuple[Field, Value]]:
        """The value of each field, cut and signed by its type."""
        for field, position, convert in self._converters:
            bit = field.fault_bit
            if bit is not None and raw[_LEADING + bit // 64] >> bit % 64 & 1:
                yield field, FAULT
            else:
                yield field, convert(raw[position])

    def frames(self, raw: Raw) -> list[int]:
        """The return addresses, the probepoint first."""
        frames: list[int] = []
        for address in raw[self._first_frame :]:
            if address == 0:
                break
            frames.append(address)
        return frames

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
    """One hit of a probe that was recorded."""

    def __init__(self, decoder: EventDecoder, raw: Raw, clock: Clock) -> None:
        self._decoder, self._raw = decoder, raw
        self.time = clock.seconds(raw[0])
        """Seconds of CLOCK_MONOTONIC."""

    @property
    def name(self) -> str:
        return self._decoder.program.name

    @property
    def where(self) -> str:
        """The probepoint, as symbol+0xOFFSET."""
        return self._decoder.program.where

    @property
    def index(self) -> int:
        """The probe's index in the session."""
        return self._decoder.program.index

    @property
    def tsc(self) -> int:
        tsc: int = self._raw[0]
        return tsc

    @property
    def tid(self) -> int:
        """The thread, as its own process sees it (in its pid namespace)."""
        tid: int = self._raw[1]
        return tid

    @property
    def pid(self) -> int:
        pid: int = self._raw[2] & _PID_MASK
        return pid

    @property
    def cpu(self) -> int:
        """The CPU that it happened on, modulo 1024."""
        cpu: int = self._raw[2] >> RECORD_CPU_SHIFT
        return cpu

    @cached_property
    def fields(self) -> list[tuple[Field, Value]]:
        return list(self._decoder.values(self._raw))

    @property
    def args(self) -> dict[str, Value]:
        """The fetch arguments: int, str, list of int, or FAULT. Text is as it was, control characters too."""
        return {field.name: value for field, value in self.fields}

    @property
    def stack(self) -> list[int]:
        """Return addresses, the probepoint first; empty unless stacks are recorded."""
        return self._decoder.frames(self._raw)

    @property
    def stack_symbols(self) -> list[str]:
        return [self._decoder.symbolize(address) for address in self.stack]

    def __repr__(self) -> str:
        return f"<Event {self.name} time={self.time:.6f} tid={self.tid} {self.args}>"


def text(data: bytes) -> str:
    """A string of the target; bytes that are not UTF-8 become `\\xNN`."""
    return data.decode("utf-8", "backslashreplace")


def _comm(data: bytes) -> str:
    return text(data[:COMM_SIZE].split(b"\0", 1)[0])


def _string(data: bytes, limit: int) -> Value:
    """The field is a u64, the number of bytes that could be read, and those bytes, at most `limit` + 1."""
    length = min(int.from_bytes(data[:8], "little"), limit + 1)
    end = data.find(b"\0", 8, 8 + length)
    if end >= 0:
        return text(data[8:end])
    return FAULT if length <= limit else TruncatedText(text(data[8 : 8 + limit]) + "...")


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
