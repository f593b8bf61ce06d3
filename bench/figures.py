"""What was measured, as rows: printed by each subject, collected into one table by run_all.py."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

from victims import be_alone, end_orderly


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `goal` is the most (or with `more` the least) that `median` may be."""

    what: str
    median: float
    least: float
    unit: str
    goal: float | None = None
    more: bool = False
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.goal is None:
            return ""
        met = self.median >= self.goal if self.more else self.median <= self.goal
        return "met" if met else "missed"

    def cells(self) -> list[str]:
        goal = "" if self.goal is None else f"{'>=' if self.more else '<='} {text(self.goal)} {self.unit}"
        figures = (f"{text(self.median)} {self.unit}", f"{text(self.least)} {self.unit}")
        return [self.what, *figures, goal, self.verdict, self.note]


HEADINGS = ("what", "median", "best", "goal", "", "beside it, in the same run")


def of(what: str, values: Sequence[float], unit: str, goal: float | None = None, note: str = "") -> Row:
    """A row of values of which less is better."""
    return Row(what, statistics.median(values), min(values), unit, goal, note=note)


def text(number: float) -> str:
    """Three significant digits."""
    if abs(number) >= 100:
        return f"{number:,.0f}"
    return f"{number:.1f}" if abs(number) >= 10 else f"{number:.2f}"


def table(rows: Iterable[Row]) -> str:
    """As markdown."""
    lines = [HEADINGS, ("---", "---:", "---:", "---:", "---", "---"), *(row.cells() for row in rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is done: `repetitions` with a fresh victim each; `quick` for a look at whether it works."""

    repetitions: int
    quick: bool

    @property
    def turns(self) -> range:
        return range(self.repetitions)


def main(description: str, measure: Callable[[Effort], Iterator[Row]]) -> None:
    """Measures one subject; what comes out is a table, or with --json a row a line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--repetitions", type=int, help="fresh victims for each figure (5; with --quick 2)")
    parser.add_argument("--quick", action="store_true", help="short and inexact, to see that it works")
    parser.add_argument("--json", action="store_true", help="one JSON object a row")
    options = parser.parse_args()
    effort = Effort(options.repetitions or (2 if options.quick else 5), options.quick)
    end_orderly()
    rows = []
    with be_alone():
        for row in measure(effort):
            rows.append(row)
            if options.json:
                print(json.dumps(asdict(row)), flush=True)
            else:
                print(f"{row.what}: {text(row.median)} {row.unit}", file=sys.stderr)
    if not options.json:
        print(table(rows), end="")
