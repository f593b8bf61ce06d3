"""A Ctrl-C before there is a target, at one import or another: said in one line, and never lost."""

from __future__ import annotations

import sys

import pytest

from cli.conftest import ENVIRONMENT, Start
from harness.running import Running
from harness.untouched import read_state, remains

pytestmark = pytest.mark.process

# Takes the number of an import (from 1 on) from its arguments, and sends SIGINT when that one begins.
PROGRAM = """
import os, signal, sys
from sidestep.cli.entry import main

class Finder:
    left = int(sys.argv.pop(1))

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        cls.left -= 1
        if cls.left == 0:
            print("interrupted at", name, flush=True)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder)
main()
"""
INTERRUPTED = "sidestep: interrupted, nothing was changed\n"


@pytest.mark.parametrize("at", [1, 2, 5, *range(10, 250, 20)])
def test_an_interrupt_at_an_import(run: Start, ticking: Running, at: int) -> None:
    before = read_state(ticking.pid)
    words = ["count", "-p", ticking.pid, "tick", "--duration", "20"]
    outcome = run(sys.executable, "-c", PROGRAM, at, *words, environment=ENVIRONMENT).finish()
    assert outcome.output.startswith("interrupted at ")
    if outcome.status:
        assert (outcome.status, outcome.errors) == (1, INTERRUPTED)
    else:
        assert " s, 1 probe" in outcome.output  # it had begun to count
    assert remains(before, read_state(ticking.pid)) == []


@pytest.mark.parametrize("at", [1, 100, 150])
def test_an_interrupt_of_a_command_that_only_looks(run: Start, ticking: Running, at: int) -> None:
    before = read_state(ticking.pid)
    words = ["check", "-p", ticking.pid, "tick"]
    outcome = run(sys.executable, "-c", PROGRAM, at, *words, environment=ENVIRONMENT).finish()
    assert outcome.output.startswith("interrupted at ")
    assert (outcome.status, outcome.errors) == (1, INTERRUPTED)
    assert remains(before, read_state(ticking.pid)) == []
