"""Events that handlers emit: classes with typed fields."""

from __future__ import annotations

import inspect
from typing import ClassVar

from sidestep.compiler import machine
from sidestep.compiler.integers import INTEGERS, Integer

TYPES = {kind.__name__: kind for kind in INTEGERS}


class Event:
    """The base of event classes: fields are annotations, each an integer type.

        class Allocation(sidestep.Event):
            size: u64
            caller: u64

    An instance has the fields' values. Raises TypeError for a class with another kind of field.
    """

    fields: ClassVar[dict[str, type[Integer]]] = {}
    label: ClassVar[str] = "Event"
    native_methods: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        cls.label = cls.__name__
        cls.fields = dict(cls.fields)
        for name, kind in inspect.get_annotations(cls).items():
            found = TYPES.get(kind.rpartition(".")[2]) if isinstance(kind, str) else kind
            if found not in INTEGERS:
                raise TypeError(f"{cls.__name__}.{name}: a field is one of {', '.join(TYPES)}")
            cls.fields[name] = found

    def __init__(self, **values: int) -> None:
        if values.keys() != self.fields.keys():
            wanted = ", ".join(self.fields)
            raise TypeError(f"{self.label} has the fields {wanted}; {', '.join(values)} were given")
        for name, value in values.items():
            kind = self.fields[name]
            if type(value) is not kind and not (type(value) is int and kind.holds(value)):
                raise TypeError(f"{self.label}.{name} is {kind.__name__}; {value!r} was given")
            setattr(self, name, kind(value))

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((self.label, *(getattr(self, name) for name in self.fields)))

    def __repr__(self) -> str:
        return f"{self.label}({', '.join(f'{name}={getattr(self, name)}' for name in self.fields)})"


def emit(event: Event) -> None:
    """Emit an event: in a target into the rings, in plain Python into the current machine's list."""
    if not isinstance(event, Event):
        raise TypeError("emit takes an Event")
    machine.current().events.append(event)
