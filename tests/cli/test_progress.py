"""The line that says how far long work has come."""

from __future__ import annotations

import io
import re
import sys

import pytest

from sidestep.cli import progress
from sidestep.cli.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal_of(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard error, on which every call is shown at once."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "SHOW_AFTER", 0.0)
    monkeypatch.setattr(progress, "_EVERY", 0.0)
    monkeypatch.setenv("COLUMNS", "40")
    return terminal


def shown(terminal: Terminal) -> list[str]:
    return [line for line in terminal.getvalue().split("\r\x1b[K") if line]


def test_a_share_never_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    with Progress() as tell:
        for done, total in ((0, 10), (5, 10), (1, 20), (7, 10), (10, 10), (3, 10)):
            tell("reading", done, total)
        tell("writing", 1, 4)
    shares = [int(share) for share in re.findall(r"reading ... +(\d+)%", terminal.getvalue())]
    assert shares == [0, 50, 50, 70, 100, 100]
    assert shown(terminal)[-1] == "writing ...  25%"
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_names_of_the_target_are_harmless_and_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    with Progress() as tell:
        tell("reading the code of \x1b[2Jx", 1, 2)
        tell("reading the code of " + "long" * 20, 1, 2)
    assert shown(terminal)[0] == "reading the code of \\x1b[2Jx ...  50%"
    assert len(shown(terminal)[1]) == 39
