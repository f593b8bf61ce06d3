"""Classes with typed fields: the keys of maps, and the base of events."""

from __future__ import annotations

import inspect
import re
from typing import ClassVar, TypeAlias

from sidestep.compiler.backtrace import StackType, stack
from sidestep.compiler.integers import INTEGERS, Integer
from sidestep.compiler.text import StringType, Text, string

TYPES = {kind.__name__: kind for kind in INTEGERS}
SIZED = re.compile(r"(?:\w+\.)*(string|stack)\((\d+)\)", re.ASCII)
FieldType: TypeAlias = type[Integer] | StringType | StackType


def _field_type(annotation: object) -> FieldType | None:
    """What an annotation, perhaps as text, says; None if it is no type of a field."""
    if isinstance(annotation, str):
        matched = SIZED.fullmatch(annotation)
        if matched is None:
            return TYPES.get(annotation.rpartition(".")[2])
        return string(int(matched[2])) if matched[1] == "string" else stack(int(matched[2]))
    if isinstance(annotation, StringType | StackType):
        return annotation
    return annotation if annotation in INTEGERS else None


class Struct:
    """The base of classes with fields: annotations, each an integer type.

        class Flow(sidestep.Struct):
            address: u32
            port: u16

    An instance has the fields' values. Raises TypeError for a class with another kind of field.
    """

    fields: ClassVar[dict[str, FieldType]] = {}
    label: ClassVar[str] = "Struct"
    native_methods: ClassVar[tuple[str, ...]] = ()
    kinds: ClassVar[str] = f"one of {', '.join(TYPES)}"  # what fields can be, for messages

    def __init_subclass__(cls) -> None:
        cls.label = cls.__name__
        cls.fields = dict(cls.fields)
        for name, kind in inspect.get_annotations(cls).items():
            found = _field_type(kind)
            if found is None or not cls.takes(found):
                raise TypeError(f"{cls.__name__}.{name}: a field is {cls.kinds}")
            cls.fields[name] = found

    @classmethod
    def takes(cls, kind: FieldType) -> bool:
        """Whether a field can have this type."""
        return not isinstance(kind, StringType | StackType)

    def __init__(self, **values: object) -> None:
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
        elif isinstance(kind, StackType):
            if isinstance(value, StackType) and value.depth <= kind.depth:
                return value.read()
            if isinstance(value, list):
                return value
        elif type(value) is kind or (type(value) is int and kind.holds(value)):
            return kind(value)
        label = kind.__name__ if isinstance(kind, type) else kind
        raise TypeError(f"{self.label}.{name} is {label}; {value!r} was given")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((self.label, *(str(getattr(self, name)) for name in self.fields)))

    def __repr__(self) -> str:
        values = {name: getattr(self, name) for name in self.fields}
        shown = {name: value if isinstance(value, int) else repr(value) for name, value in values.items()}
        return f"{self.label}({', '.join(f'{name}={value}' for name, value in shown.items())})"
