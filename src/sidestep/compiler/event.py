"""Events that handlers emit: classes with typed fields."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from sidestep.compiler import machine
from sidestep.compiler.integers import INTEGERS, Integer
from sidestep.compiler.text import StringType, Text, string

TYPES = {kind.__name__: kind for kind in INTEGERS}


FieldType: TypeAlias = type[Integer] | StringType
STRING = re.compile(r"(?:\w+\.)*string\((\d+)\)", re.ASCII)


def _field_type(annotation: object) -> FieldType | None:
    """What an annotation, perhaps as text, says; None if it is no type of a field."""
    if isinstance(annotation, str):
        matched = STRING.fullmatch(annotation)
        return string(int(matched[1])) if matched else TYPES.get(annotation.rpartition(".")[2])
    if isinstance(annotation, StringType):
        return annotation
    return annotation if annotation in INTEGERS else None


class Event:
    """The base of event classes: fields are annotations, each an integer type or `string(limit)`.

        class Opened(sidestep.Event):
            path: string(128)
            flags: u32

    An instance has the fields' values. Raises TypeError for a class with another kind of field.
    """

    fields: ClassVar[dict[str, FieldType]] = {}
    label: ClassVar[str] = "Event"
    native_methods: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        cls.label = cls.__name__
        cls.fields = dict(cls.fields)
        for name, kind in inspect.get_annotations(cls).items():
            found = _field_type(kind)
            if found is None:
                raise TypeError(
                    f"{cls.__name__}.{name}: a field is string(limit) or one of {', '.join(TYPES)}"
                )
            cls.fields[name] = found

    def __init__(self, **values: int | Text | str | None) -> None:
        if values.keys() != self.fields.keys():
            wanted = ", ".join(self.fields)
            raise TypeError(f"{self.label} has the fields {wanted}; {', '.join(values)} were given")
        for name, value in values.items():
            setattr(self, name, self._converted(name, value))

    def _converted(self, name: str, value: object) -> object:
        kind = self.fields[name]
        if isinstance(kind, StringType):
            if isinstance(value, Text) and value.limit <= kind.limit:
                return value.read()
            if value is None or isinstance(value, str):
                return value
        elif type(value) is kind or (type(value) is int and kind.holds(value)):
            return kind(value)
        label = kind if isinstance(kind, StringType) else kind.__name__
        raise TypeError(f"{self.label}.{name} is {label}; {value!r} was given")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((self.label, *(getattr(self, name) for name in self.fields)))

    def __repr__(self) -> str:
        values = {name: getattr(self, name) for name in self.fields}
        shown = {name: value if isinstance(value, int) else repr(value) for name, value in values.items()}
        return f"{self.label}({', '.join(f'{name}={value}' for name, value in shown.items())})"


@dataclass(frozen=True, slots=True)
class Emission:
    """What an emit operation fills. `limits`: None for a number, the bytes that are read for text, 0 for the
    thread's name, which needs no value."""

    event: type[Event]
    limits: tuple[int | None, ...]

    @property
    def label(self) -> str:
        return self.event.label


def emit(event: Event) -> None:
    """Emit an event: in a target into the rings, in plain Python into the current machine's list."""
    if not isinstance(event, Event):
        raise TypeError("emit takes an Event")
    machine.current().events.append(event)
