"""Every reason of the table reaches the user, with what to do next; exit code 1, and nothing is changed."""

from __future__ import annotations

from pathlib import Path

import pytest

import sidestep
from cli.conftest import Command, Start
from harness.running import Running
from harness.untouched import differences, read_state
from sidestep.errors import ProbeError, Reason, TargetError, reasons

pytestmark = pytest.mark.process


@pytest.mark.parametrize("reason", reasons(), ids=lambda reason: reason.name)
@pytest.mark.parametrize("kind", [TargetError, ProbeError])
def test_a_reason_is_said_with_what_to_do(
    command: Command, monkeypatch: pytest.MonkeyPatch, reason: Reason, kind: type[TargetError | ProbeError]
) -> None:
    def attach(*_: object, **__: object) -> None:
        raise kind("the subject", reason, "a detail")

    monkeypatch.setattr(sidestep, "attach", attach, raising=False)
    result = command("count", "-p", 1, "malloc")
    assert result.code == 1
    assert result.output == ""
    first, *others = result.errors.splitlines()
    assert first.startswith(f"sidestep: the subject: {reason.sentence}")
    assert "a detail" in result.errors
    assert reason.hint
    assert reason.hint in " ".join(others)


REFUSED = {
    "no-such-symbol": ["tack"],
    "no-such-module": ["libnothing:tick"],
    "offset-outside": ["tick+0x4000"],
    "not-a-boundary": ["main+1"],
    "not-in-text": ["0x8"],
    "nothing-matches": ["sample:nothing*"],
    "syntax": ["tick+"],
}


@pytest.mark.parametrize("words", REFUSED.values(), ids=REFUSED.keys())
@pytest.mark.parametrize("command_name", ["count", "trace"])
def test_a_probe_that_is_refused_changes_nothing(
    sidestep_run: Start, ticking: Running, command_name: str, words: list[str]
) -> None:
    before = read_state(ticking.pid)
    outcome = sidestep_run(command_name, "-p", ticking.pid, "--duration", "5", *words).finish()
    assert outcome.status == (2 if words == REFUSED["syntax"] else 1), str(outcome)
    assert outcome.errors.startswith("sidestep: ")
    assert outcome.output == ""
    assert not differences(before, read_state(ticking.pid))


def test_one_that_is_refused_among_others_takes_all_back(
    sidestep_run: Start, ticking: Running, tmp_path: Path
) -> None:
    before = read_state(ticking.pid)
    outcome = sidestep_run("count", "-p", ticking.pid, "tick", "libc:free", "no_such_function").finish()
    assert outcome.status == 1, str(outcome)
    assert "no_such_function" in outcome.errors
    assert not differences(before, read_state(ticking.pid))
