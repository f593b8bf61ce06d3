"""Where words go: results to standard output or a file, everything else to standard error."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from sidestep.cli.tables import Column, render
from sidestep.symbols.printable import clean


class OutputClosedError(Exception):
    """Nobody reads the output any more (`| head` has ended). Not an error: the command ends quietly."""


def say(text: str) -> None:
    """A message for a person, on standard error, with escapes for what does not print."""
    lines = "\n".join(clean(line) for line in text.split("\n"))
    with contextlib.suppress(OSError, ValueError):
        print(f"sidestep: {lines}", file=sys.stderr, flush=True)


def make_output_safe() -> None:
    """Prepares the standard streams.

    Characters that the encoding lacks are written as escapes instead of ending the program. What goes to a
    closed stream goes nowhere, and not into a file that happens to get its number.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def silence(stream: TextIO) -> None:
    """Makes a stream whose reader is gone swallow what is still buffered in it, and what comes."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


@contextlib.contextmanager
def reader_may_leave(stream: TextIO) -> Iterator[None]:
    """Turns the end of the stream's reader into OutputClosedError."""
    try:
        yield
    except BrokenPipeError:
        silence(stream)
        raise OutputClosedError from None


def is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:
        return False


def width_of(stream: TextIO) -> int | None:
    """Columns of the terminal behind `stream`; None if it is a file or a pipe, where nothing is to be cut."""
    return terminal_size(stream).columns if is_terminal(stream) else None


def terminal_size(stream: TextIO) -> os.terminal_size:
    """Columns and lines; COLUMNS and LINES of the environment win, as with other programs."""
    size = shutil.get_terminal_size((0, 0))
    try:
        own = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        own = os.terminal_size((0, 0))
    columns = _environment("COLUMNS") or own.columns or size.columns or 80
    return os.terminal_size((columns, _environment("LINES") or own.lines or size.lines or 24))


def _environment(name: str) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else 0


@contextlib.contextmanager
def result_stream(path: Path | None, *, launched: bool) -> Iterator[TextIO]:
    """The stream for results: `path`, else standard output, or standard error beside a launched command."""
    if path is None:
        yield sys.stderr if launched else sys.stdout
        return
    with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
        yield file


def write_lines(stream: TextIO, lines: Sequence[str]) -> None:
    """Lines of text with escapes for what does not print, flushed."""
    with reader_may_leave(stream):
        stream.write("".join(f"{clean(line)}\n" for line in lines))
        stream.flush()


def write_table(stream: TextIO, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    write_lines(stream, render(columns, rows, width_of(stream)))


def write_json(stream: TextIO, objects: Sequence[Mapping[str, Any]]) -> None:
    """One object a line. JSON escapes control characters, and all that is not ASCII."""
    write_lines(stream, [json.dumps(item) for item in objects])


def os_error(error: OSError, file: Path | None = None) -> str:
    """What went wrong, and with which file: `file`, where the error does not know."""
    text = error.strerror or type(error).__name__
    name = error.filename if error.filename is not None else file
    return f"{name}: {text}" if name is not None else text


def plural(number: int, noun: str) -> str:
    """`1 probe`, `2 probes`, `1,024 probes`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
