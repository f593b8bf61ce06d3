"""Plain tables that fit a terminal: columns of text, cut or left out where it is too narrow."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

GAP: Final = "  "
CUT: Final = ".."


@dataclass(frozen=True, slots=True)
class Column:
    """How one column is laid out.

    `minimum` is the width down to which its cells may be cut (None: never cut). A column with a `rank` is
    left out when cutting does not help, the highest rank first.
    """

    title: str
    right: bool = False
    minimum: int | None = None
    rank: int = 0


def display_width(text: str) -> int:
    """Columns of a terminal that a printable text takes."""
    if text.isascii():
        return len(text)
    return sum(_character_width(character) for character in text)


def cut(text: str, width: int) -> str:
    """`text`, its end replaced by `..` if it is wider than `width`."""
    if display_width(text) <= width:
        return text
    room = max(width - len(CUT), 0)
    kept = text[:room]
    while kept and display_width(kept) > room:
        kept = kept[:-1]
    return kept + CUT[: width - display_width(kept)]


def render(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """The lines of a table with its heading, none wider than `width` (None: as wide as it gets).

    Columns that have no text in any row are left out.
    """
    if rows:
        kept = [number for number in range(len(columns)) if any(row[number] for row in rows)]
    else:
        kept = list(range(len(columns)))
    natural = [
        max([display_width(column.title), *(display_width(row[number]) for row in rows)])
        for number, column in enumerate(columns)
    ]
    if width is not None:
        kept = _narrowed(columns, natural, kept, width)
    widths = {number: natural[number] for number in kept}
    if width is not None:
        _shrink(columns, widths, width)
    titles = [column.title for column in columns]
    lines = [_line(columns, widths, row) for row in [titles, *rows]]
    return [cut(line, width) for line in lines] if width is not None else lines


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * max(len(widths) - 1, 0)


def _narrowed(columns: Sequence[Column], natural: Sequence[int], kept: list[int], width: int) -> list[int]:
    """The columns that have room when every column that may be cut is cut."""
    while True:
        smallest = [_smallest(columns[number], natural[number]) for number in kept]
        droppable = [number for number in kept if columns[number].rank]
        if _total(smallest) <= width or not droppable:
            return kept
        kept = [number for number in kept if number != max(droppable, key=lambda it: columns[it].rank)]


def _smallest(column: Column, natural: int) -> int:
    return natural if column.minimum is None else min(natural, column.minimum)


def _shrink(columns: Sequence[Column], widths: dict[int, int], width: int) -> None:
    """Takes from the widest column that may be cut, until all fit or nothing can be taken."""
    excess = _total(list(widths.values())) - width
    while excess > 0:
        spare = {number: widths[number] - _smallest(columns[number], widths[number]) for number in widths}
        candidates = [number for number, room in spare.items() if room > 0]
        if not candidates:
            return
        widest = max(candidates, key=lambda number: widths[number])
        others = [widths[number] for number in candidates if number != widest]
        step = min(excess, spare[widest], max(widths[widest] - max(others, default=0), 1))
        widths[widest] -= step
        excess -= step


def _line(columns: Sequence[Column], widths: dict[int, int], cells: Sequence[str]) -> str:
    parts = []
    for number, width in widths.items():
        text = cut(cells[number], width)
        padding = " " * (width - display_width(text))
        parts.append(padding + text if columns[number].right else text + padding)
    return GAP.join(parts).rstrip()


def _character_width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
