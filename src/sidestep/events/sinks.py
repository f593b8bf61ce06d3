"""Writing events: as text like the kernel's trace_pipe, or as JSON lines.

Whatever comes from the target (names, strings) is escaped: nothing it holds can move a terminal's cursor.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TextIO

from sidestep.events.decode import Column, Event, EventDecoder, Fault, Raw, Text, Value
from sidestep.events.record import Field

# C0 and C1 controls, DEL, line and paragraph separators, bidirectional controls, invisible marks, surrogates.
_UNSAFE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    r"\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
_MOST_NAMES = 1 << 16  # of threads that are kept
_ESCAPED_BYTES = range(0xDC80, 0xDD00)  # what the error handler surrogateescape makes of bytes
_SHORT = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


def escape(text: str) -> str:
    r"""`text` with every character that a terminal would act on, or not show, written as an escape. A byte
    that was no character (PEP 383) is `\xNN`."""
    return _UNSAFE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    character = match.group()
    code = ord(character)
    if character in _SHORT:
        return _SHORT[character]
    if code in _ESCAPED_BYTES:
        code -= _ESCAPED_BYTES.start - 0x80
        return f"\\x{code:02x}"
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class Sink(Protocol):
    """Where events go."""

    def write(self, events: Iterable[Event]) -> None: ...

    def summary(self, summary: Mapping[str, Any]) -> None: ...


class TextSink:
    """`TASK-TID [CPU] SECONDS: event: (symbol+0x0) name=value`, one line an event.

    `task_name` tells the name of a thread by (pid, tid); it is asked once for each and may return "".
    """

    def __init__(self, file: TextIO, task_name: Callable[[int, int], str]) -> None:
        self._file, self._task_name = file, task_name
        self._tasks: dict[tuple[int, int], str] = {}
        self._writers: dict[EventDecoder, FieldWriter] = {}

    def write(self, events: Iterable[Event]) -> None:
        lines: list[str] = []
        for event in events:
            decoder, raw = event.decoder, event.raw
            writer = self._writers.get(decoder) or self._new_writer(decoder)
            task = self._tasks.get(raw[1:3]) or self._new_task(event)
            lines.append(f"{task}{event.time:.6f}{writer.head}{writer.fields(raw)}")
            if decoder.format.stack_depth and event.stack:
                lines.append(f"{'<stack trace>':>16}")
                lines += [f" => {escape(symbol)}" for symbol in event.stack_symbols]
        if lines:
            self._file.write("\n".join(lines) + "\n")
            self._file.flush()

    def summary(self, summary: Mapping[str, Any]) -> None:
        """Nothing: for people, the command line prints a table."""

    def _new_writer(self, decoder: EventDecoder) -> FieldWriter:
        head = f": {escape(decoder.program.name)}: ({escape(decoder.program.where)})"
        writer = FieldWriter(decoder, head, " {}=", "", "(fault)", _text_of)
        self._writers[decoder] = writer
        return writer

    def _new_task(self, event: Event) -> str:
        """`TASK-TID [CPU] ` of a thread on a CPU."""
        if len(self._tasks) > _MOST_NAMES:
            self._tasks.clear()
        name = _quoted(self._task_name(event.pid, event.tid)) or "<...>"
        task = self._tasks[event.raw[1:3]] = f"{name:>16}-{event.tid:<7} [{event.cpu:03}] "
        return task


class JsonSink:
    """One JSON object a line: events, and a summary as the last one.

    Memory that could not be read is null. `truncated` has the names of strings that were cut; `raw` has, by
    name and in hexadecimal, the bytes of those that are not UTF-8; both only where there are any. Numbers
    above 2**53 are written in full, as JSON allows. All that is not ASCII is escaped.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._writers: dict[EventDecoder, FieldWriter] = {}
        self._texts: list[tuple[str, Text]] = []
        """The strings of the present event that need a word: cut, or not UTF-8."""

    def write(self, events: Iterable[Event]) -> None:
        lines: list[str] = []
        for event in events:
            decoder, raw = event.decoder, event.raw
            writer = self._writers.get(decoder) or self._new_writer(decoder)
            fields, more = writer.fields(raw), ""
            if self._texts:
                more = self._about_texts()
            if decoder.format.stack_depth and event.stack:
                more += f', "stack": {json.dumps(event.stack_symbols)}'
            lines.append(
                f'{writer.head}{event.time:.9f}, "pid": {event.pid}, "tid": {raw[1]}, "cpu": {event.cpu},'
                f' "args": {{{fields}}}{more}}}'
            )
        if lines:
            self._file.write("\n".join(lines) + "\n")
            self._file.flush()

    def summary(self, summary: Mapping[str, Any]) -> None:
        self._file.write(json.dumps({"type": "summary", **summary}) + "\n")
        self._file.flush()

    def _new_writer(self, decoder: EventDecoder) -> FieldWriter:
        event, where = json.dumps(decoder.program.name), json.dumps(decoder.program.where)
        head = f'{{"type": "event", "event": {event}, "where": {where}, "time": '
        writer = FieldWriter(decoder, head, '"{}": ', ", ", "null", self._json_of)
        self._writers[decoder] = writer
        return writer

    def _json_of(self, column: Column) -> Callable[[Any], str]:
        field, convert = column.field, column.convert
        if field.is_number and field.type.kind != "symbol":
            return lambda item: str(convert(item))

        def text(item: Any) -> str:
            value = convert(item)
            if isinstance(value, Text) and (value.truncated or not value.is_utf8):
                self._texts.append((field.name, value))
            return "null" if isinstance(value, Fault) else json.dumps(value)

        return text

    def _about_texts(self) -> str:
        truncated = [name for name, text in self._texts if text.truncated]
        raw = {name: text.raw.hex() for name, text in self._texts if not text.is_utf8}
        self._texts.clear()
        about = {"truncated": truncated, "raw": raw}
        return "".join(f', "{key}": {json.dumps(value)}' for key, value in about.items() if value)


class FieldWriter:
    """Writes the fields of one event's records, behind what all of its lines have in common, `head`.

    `label` has a place for a field's name; `text_of` gives what makes text of the items of a column.
    """

    def __init__(
        self,
        decoder: EventDecoder,
        head: str,
        label: str,
        separator: str,
        fault: str,
        text_of: Callable[[Column], Callable[[Any], str]],
    ) -> None:
        self.head = head
        self._decoder, self._separator, self._fault = decoder, separator, fault
        self._columns = [
            (column, label.format(column.field.name), column.position, text_of(column))
            for column in decoder.columns
        ]

    def fields(self, raw: Raw) -> str:
        if self._decoder.format.fault_words and self._decoder.has_fault(raw):
            return self._separator.join(
                [
                    label + (self._fault if column.is_fault(raw) else text(raw[position]))
                    for column, label, position, text in self._columns
                ]
            )
        return self._separator.join(
            [label + text(raw[position]) for _, label, position, text in self._columns]
        )


def _text_of(column: Column) -> Callable[[Any], str]:
    field, convert = column.field, column.convert
    if field.is_number and field.type.kind == "x":
        return lambda item: hex(convert(item))  # type: ignore[arg-type]
    if field.is_number and field.type.kind != "symbol":
        return lambda item: str(convert(item))
    return lambda item: format_value(field, convert(item))


def format_value(field: Field, value: Value) -> str:
    """A value as text, by its type: hexadecimal for x, strings between double quotes."""
    if isinstance(value, int):
        return f"{value:#x}" if field.type.kind == "x" else str(value)
    if isinstance(value, Fault):
        return str(value)
    if isinstance(value, list):
        return "{" + ",".join(format_value(field, element) for element in value) + "}"
    if not isinstance(value, Text):
        return escape(value)
    text = _quoted(value.raw.decode("utf-8", "surrogateescape"))
    return f'"{text}"...' if value.truncated else f'"{text}"'


def _quoted(text: str) -> str:
    """Escaped so that it can be told what it was, between double quotes."""
    return escape(text.replace("\\", "\\\\").replace('"', '\\"'))
