"""Text in handlers: strings of the target's memory, and the thread's name.

`string(limit)` is the type of an event's field. In a handler `string(pointer, limit)` stands for the bytes up
to a NUL, at most `limit`; it can be a field of an event, and compared with a constant. `comm()` is the
thread's name, which has 15 bytes at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import overload

from sidestep.compiler import machine
from sidestep.compiler.machine import HandlerFault

LONGEST = 1024
LONGEST_COMPARED = 63
COMM_LENGTH = 15


@dataclass(frozen=True, slots=True)
class StringType:
    """The type of a field with text of at most `limit` bytes."""

    limit: int

    def __str__(self) -> str:
        return f"string({self.limit})"


class Text:
    """Text in memory, in plain Python. `pointer` None: the thread's name."""

    def __init__(self, pointer: int | None, limit: int) -> None:
        self.pointer, self.limit = pointer, limit

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, str | bytes):
            return NotImplemented
        return machine.current().same_text(self.pointer, compared(other, self.limit))

    __hash__ = None  # type: ignore[assignment]

    def whole(self) -> bytes:
        """Its bytes. HandlerFault where memory ends before the text does."""
        return machine.current().whole_text(self.pointer, self.limit)

    def read(self) -> str | None:
        """The text as an event has it: its beginning where it goes on behind the limit; None where memory
        ends before."""
        try:
            raw = machine.current().whole_text(self.pointer, self.limit + 1)
        except HandlerFault:
            return None
        return raw[: self.limit].decode("utf-8", "backslashreplace")


def compared(constant: str | bytes, limit: int) -> bytes:
    """The bytes that must be there for text of that limit to be equal. ValueError: it cannot be."""
    raw = constant.encode() if isinstance(constant, str) else constant
    if len(raw) > min(limit, LONGEST_COMPARED) or b"\0" in raw:
        raise ValueError(
            f"text of at most {min(limit, LONGEST_COMPARED)} bytes is never equal to {constant!r}"
        )
    return raw + b"\0" if len(raw) < limit else raw


@overload
def string(limit: int, /) -> StringType: ...
@overload
def string(pointer: int, limit: int, /) -> Text: ...
def string(first: int, limit: int | None = None, /) -> StringType | Text:
    """The type of a field, or (with a pointer) the text that is there."""
    size = first if limit is None else limit
    if not 0 < size <= LONGEST:
        raise ValueError(f"a string has 1 to {LONGEST} bytes, not {size}")
    return StringType(int(first)) if limit is None else Text(int(first), limit)


def comm() -> Text:
    """The name of the thread."""
    return Text(None, COMM_LENGTH)
