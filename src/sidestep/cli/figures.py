"""What the probes of a run have counted, as numbers of one moment, as a table and as JSON."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from sidestep.cli.output import plural
from sidestep.cli.tables import Column
from sidestep.symbols.printable import clean

if TYPE_CHECKING:
    from sidestep.cli.run import Run
    from sidestep.probes import Kprobe

FEW: Final = 20
"""With more probes than this, the ones without hits are not listed."""

COLUMNS: Final = (
    Column("MATCHES", right=True),
    Column("HITS", right=True),
    Column("RATE/S", right=True, rank=1),
    Column("NMISSED", right=True, rank=2),
    Column("LOST", right=True, rank=3),
    Column("PROBE", minimum=12),
    Column("MODULE", minimum=8, rank=5),
    Column("NOTE", minimum=8, rank=6),
)


@dataclass(frozen=True, slots=True)
class Figure:
    """The numbers of one probe. `matched` are the hits that its condition and the filters let through."""

    probe: Kprobe
    hits: int
    matched: int
    nmissed: int
    lost: int

    @classmethod
    def read(cls, probe: Kprobe, *, filtered: bool) -> Figure:
        hits = probe.hits
        return cls(probe, hits, probe.matched if filtered else hits, probe.nmissed, probe.lost)


@dataclass(frozen=True, slots=True)
class Figures:
    """All probes at one `time` (seconds of CLOCK_MONOTONIC). `filtered`: hits and matches can differ."""

    figures: list[Figure]
    filtered: bool
    time: float = field(default_factory=time.monotonic)

    @classmethod
    def read(cls, probes: Sequence[Kprobe], *, filtered: bool) -> Figures:
        return cls([Figure.read(probe, filtered=filtered) for probe in probes], filtered)

    @property
    def total(self) -> int:
        """Hits of all probes, or their matches where some are filtered out."""
        return sum(self._counted(figure) for figure in self.figures)

    @property
    def lost(self) -> int:
        return sum(figure.lost for figure in self.figures)

    def rates(self, before: Figures) -> list[float]:
        """What came per second since an earlier look at the same probes, for each."""
        seconds = max(self.time - before.time, 1e-6)
        pairs = zip(self.figures, before.figures, strict=True)
        return [(self._counted(now) - self._counted(then)) / seconds for now, then in pairs]

    def averages(self, seconds: float) -> list[float]:
        """Per second over the whole run, for each."""
        return [self._counted(figure) / max(seconds, 1e-6) for figure in self.figures]

    def rows(self, rates: Sequence[float] | None = None) -> list[tuple[str, ...]]:
        """Rows for COLUMNS, most hits first; probes without hits only where there are few in all."""
        order = self._order()
        titles = self._titles()
        shown = [number for number in order if len(order) <= FEW or self.figures[number].hits]
        return [
            self._row(self.figures[number], titles[number], rates[number] if rates else None)
            for number in shown
        ]

    def most_hit(self, count: int) -> list[Figure]:
        """The first `count` probes by their hits (by their matches, where some are filtered out)."""
        return [self.figures[number] for number in self._order()[:count]]

    def _order(self) -> list[int]:
        return sorted(range(len(self.figures)), key=lambda number: -self._counted(self.figures[number]))

    def _titles(self) -> list[str]:
        """What each probe is called: by its name, and where several have it by group and condition, too."""
        names = Counter((figure.probe.name, figure.probe.module) for figure in self.figures)
        return [
            _full_name(figure.probe)
            if names[figure.probe.name, figure.probe.module] > 1
            else figure.probe.name
            for figure in self.figures
        ]

    @property
    def without_hits(self) -> int:
        """How many probes `rows` leaves out."""
        if len(self.figures) <= FEW:
            return 0
        return sum(not figure.hits for figure in self.figures)

    def _counted(self, figure: Figure) -> int:
        return figure.matched if self.filtered else figure.hits

    def _row(self, figure: Figure, title: str, rate: float | None) -> tuple[str, ...]:
        probe = figure.probe
        return (
            str(figure.matched) if self.filtered else "",
            str(figure.hits),
            "" if rate is None else format_rate(rate),
            str(figure.nmissed or ""),
            str(figure.lost or ""),
            clean(title),
            clean(probe.module or ""),
            clean(probe.note or ""),
        )


def _full_name(probe: Kprobe) -> str:
    group = f"{probe.action.group}/" if probe.action.group else ""
    condition = f" if {probe.condition}" if probe.condition else ""
    return f"{group}{probe.name}{condition}"


def format_rate(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 9.95 or rate == 0 else f"{rate:.1f}"


def footer(figures: Figures, seconds: float, hidden: int = 0) -> str:
    """One line below a table; `hidden` rows with hits were not shown."""
    parts = [f"{seconds:.1f} s", plural(len(figures.figures), "probe")]
    if hidden:
        parts.append(f"{hidden:,} more with hits not shown")
    if figures.without_hits:
        parts.append(f"{figures.without_hits:,} without hits")
    if figures.lost:
        parts.append(f"{plural(figures.lost, 'event')} lost")
    return ", ".join(parts)


def summary(run: Run, figures: Figures, top: int | None = None) -> dict[str, Any]:
    """The last line of `--format json`; docs/output.md describes it. `top`: of so many probes at most."""
    shown = figures.figures if top is None else figures.most_hit(top)
    executed = {"executed": run.executed} if run.executed else {}
    return {
        "type": "summary",
        "seconds": round(run.seconds, 6),
        "ended": run.ended,
        **executed,
        "lost": figures.lost,
        "probes": [_probe_fields(figure) for figure in shown],
        "probes_not_shown": len(figures.figures) - len(shown),
        "refused": [
            {"probe": each.probe, "reason": each.refusal.reason.name, "detail": each.refusal.detail}
            for each in run.batch.refused
        ],
    }


def _probe_fields(figure: Figure) -> dict[str, Any]:
    probe = figure.probe
    return {
        "probe": probe.name,
        "group": probe.action.group,
        "condition": probe.condition,
        "symbol": probe.symbol,
        "module": probe.module,
        "address": probe.addr,
        "hits": figure.hits,
        "hits_by_pid": {str(pid): hits for pid, hits in sorted(probe.hits_by_pid.items())},
        "matched": figure.matched,
        "nmissed": figure.nmissed,
        "lost": figure.lost,
        "method": probe.method,
        "note": probe.note,
    }
