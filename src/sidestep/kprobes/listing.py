"""The list of probes, in the format of the kernel's /sys/kernel/debug/kprobes/list."""

from __future__ import annotations

from collections.abc import Iterable

from sidestep.events.sinks import escape
from sidestep.kprobes.registry import Placed


def line(address: int, kind: str, symbol: str, module: str, marks: Iterable[str] = ()) -> str:
    """One probe: address, k or r, symbol+offset, module, marks in brackets."""
    shown = "".join(f" [{mark}]" for mark in marks)
    return f"{address:016x}  {kind}  {escape(symbol)}  {escape(module)}{shown}"


def list_probes(placed: Iterable[Placed]) -> str:
    """The probes of a session, in the order of registration."""
    lines = []
    for each in placed:
        probe = each.probe
        marks = ["GONE"] if probe.gone else []
        marks += ["DISABLED"] if probe.disabled else ["OPTIMIZED"] if probe.optimized else []
        symbol = f"{each.location.symbol}+{each.location.offset:#x}"
        lines.append(line(each.address, "k", symbol, each.location.module.name, marks))
    return "\n".join(lines)
