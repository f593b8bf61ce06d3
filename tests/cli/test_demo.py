"""The demonstration runs without a terminal, and finds the program as it was."""

from __future__ import annotations

import pytest

from cli.conftest import Start


@pytest.mark.process
def test_demo(sidestep_run: Start) -> None:
    outcome = sidestep_run("demo").finish()
    assert outcome.status == 0, str(outcome)
    lines = outcome.output.splitlines()
    assert any(
        line.split()[-2:-1] == ["malloc"] and int(line.split()[0]) > 0 for line in lines if line.split()
    )
    assert any(": open: (open64+0x0) path=" in line for line in lines)
    assert any("compared with those before: the same" in line for line in lines)
    assert any("results right, exit code 0" in line for line in lines)
    assert "\x1b" not in outcome.output + outcome.errors
