"""Writing events: as text like the kernel's trace_pipe, or as JSON lines.

Whatever comes from the target (names, strings) is escaped: nothing it holds can move a terminal's cursor.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TextIO

from sidestep.events.decode import Event, Fault, TruncatedText, Value
from sidestep.events.record import Field

# C0 and C1 controls, DEL, line and paragraph separators, bidirectional controls, invisible marks, surrogates.
_UNSAFE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb]"
)
_SHORT = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


def escape(text: str) -> str:
    """`text` with every character that a terminal would act on, or not show, written as an escape."""
    return _UNSAFE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    character = match.group()
    code = ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


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

    def write(self, events: Iterable[Event]) -> None:
        lines = [line for event in events for line in self._lines(event)]
        if lines:
            self._file.write("\n".join(lines) + "\n")
            self._file.flush()

    def summary(self, summary: Mapping[str, Any]) -> None:
        """Nothing: for people, the command line prints a table."""

    def _lines(self, event: Event) -> Iterable[str]:
        values = "".join(f" {field.name}={format_value(field, value)}" for field, value in event.fields)
        yield (
            f"{self._task(event):>16}-{event.tid:<7} [{event.cpu:03}] {event.time:.6f}:"
            f" {escape(event.name)}: ({escape(event.where)}){values}"
        )
        if event.stack:
            yield f"{'<stack trace>':>16}"
            yield from (f" => {escape(symbol)}" for symbol in event.stack_symbols)

    def _task(self, event: Event) -> str:
        key = (event.pid, event.tid)
        name = self._tasks.get(key)
        if name is None:
            if len(self._tasks) > 65536:
                self._tasks.clear()
            name = self._tasks[key] = escape(self._task_name(event.pid, event.tid)) or "<...>"
        return name


class JsonSink:
    """One JSON object a line: events, and a summary as the last one.

    Memory that could not be read is null; a string that was cut ends with `...`; numbers above 2**53 are
    written in full, as JSON allows.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, events: Iterable[Event]) -> None:
        lines = [json.dumps(_json_event(event), separators=(", ", ": ")) for event in events]
        if lines:
            self._file.write("\n".join(lines) + "\n")
            self._file.flush()

    def summary(self, summary: Mapping[str, Any]) -> None:
        self._file.write(json.dumps({"type": "summary", **summary}) + "\n")
        self._file.flush()


def format_value(field: Field, value: Value) -> str:
    """A value as text, by its type: hexadecimal for x, strings between double quotes."""
    if isinstance(value, Fault):
        return str(value)
    if isinstance(value, list):
        return "{" + ",".join(_number(field, element) for element in value) + "}"
    if isinstance(value, str):
        if field.type.kind == "symbol":
            return escape(value)
        text = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escape(text[:-3])}"...' if isinstance(value, TruncatedText) else f'"{escape(text)}"'
    return _number(field, value)


def _number(field: Field, value: int) -> str:
    return f"{value:#x}" if field.type.kind in ("x", "symbol") else str(value)


def _json_event(event: Event) -> dict[str, Any]:
    """JSON escapes control characters itself, and all that is not ASCII."""
    args = {field.name: None if isinstance(value, Fault) else value for field, value in event.fields}
    fields: dict[str, Any] = {
        "type": "event",
        "event": event.name,
        "time": round(event.time, 9),
        "pid": event.pid,
        "tid": event.tid,
        "cpu": event.cpu,
        "where": event.where,
        "args": args,
    }
    if event.stack:
        fields["stack"] = event.stack_symbols
    return fields
