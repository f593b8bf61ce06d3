"""Events that handlers emit."""

from __future__ import annotations

from dataclasses import dataclass

from sidestep.compiler import machine
from sidestep.compiler.backtrace import StackType
from sidestep.compiler.struct import TYPES, FieldType, Struct


class Event(Struct):
    """The base of event classes: fields are annotations, each an integer type, `string(limit)`, or (one at
    most) `stack(depth)`.

        class Opened(sidestep.Event):
            path: string(128)
            flags: u32
            callers: stack(8)

    An instance has the fields' values. Raises TypeError for a class with another kind of field.
    """

    label = "Event"
    kinds = f"string(limit), stack(depth) or one of {', '.join(TYPES)}"

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if len([kind for kind in cls.fields.values() if isinstance(kind, StackType)]) > 1:
            raise TypeError(f"{cls.__name__}: an event has one backtrace at most")

    @classmethod
    def takes(cls, kind: FieldType) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Emission:
    """What an emit operation fills. `limits`: None for a number, the bytes that are read for text, 0 for the
    thread's name, which needs no value; a backtrace has none. `depth`: how many addresses of it, 0 without
    one, else the operation's last argument is where they are."""

    event: type[Event]
    limits: tuple[int | None, ...]
    depth: int = 0

    @property
    def label(self) -> str:
        return self.event.label


def emit(event: Event) -> None:
    """Emit an event: in a target into the rings, in plain Python into the current machine's list."""
    if not isinstance(event, Event):
        raise TypeError("emit takes an Event")
    machine.current().events.append(event)
