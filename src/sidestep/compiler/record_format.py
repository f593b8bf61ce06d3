"""How the events of a class lie in the rings: as those of fetch arguments do."""

from __future__ import annotations

from sidestep.compiler.backtrace import StackType
from sidestep.compiler.event import Event
from sidestep.compiler.integers import Integer
from sidestep.compiler.text import StringType
from sidestep.events.record import EventProgram
from sidestep.spec import FetchArgument, FetchType, Immediate, Memory

DEFAULT_LIMIT = 1


def event_program(kind: type[Event], index: int = 0) -> EventProgram:
    """What the reader knows of a class's events. All strings of one class take the room of the longest.
    Raises ProbeError when the record would be too large."""
    limits = [field.limit for field in kind.fields.values() if isinstance(field, StringType)]
    stacks = {name: field.depth for name, field in kind.fields.items() if isinstance(field, StackType)}
    arguments = tuple(
        _argument(name, field) for name, field in kind.fields.items() if not isinstance(field, StackType)
    )
    return EventProgram(
        index,
        kind.label,
        kind.label,
        arguments,
        stack_name=next(iter(stacks), None),
        stack_depth=sum(stacks.values()),
        string_limit=max(limits, default=DEFAULT_LIMIT),
    )


def _argument(name: str, field: type[Integer] | StringType) -> FetchArgument:
    if isinstance(field, StringType):
        # Memory that may not be there: the record says so with a bit of its own.
        return FetchArgument(name, Memory(0), FetchType("string", 8))
    return FetchArgument(name, Immediate(0), FetchType("s" if field.signed else "u", field.bits))
