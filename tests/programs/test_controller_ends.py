"""A controller that ends without detaching, by a signal or at its exit, takes its probes out first."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import ModuleType

import pytest

from harness.build import Builder
from harness.programs import place
from harness.running import Outcome, Running
from harness.untouched import read_state, remains

Run = Callable[..., Running]

ATTACHES = """
import os, signal, sys, time, sidestep
target = sidestep.attach(int(sys.argv[1]))
target.trace(sys.argv[2])
"""
ENDINGS = {
    "sleeping": 'print("armed", flush=True); time.sleep(60)',
    "reading events": 'print("armed", flush=True)\nfor event in target.events(): pass',
    "placing probes": """
print("armed", flush=True)
while True: target.unregister_kprobes(target.count(sys.argv[2]).probes)
""",
    "with children": """
if not os.fork():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
assert os.WTERMSIG(os.wait()[1]) == signal.SIGTERM
assert len(target.probes) == 1 and target.probes[0].registered
print("armed", flush=True)
time.sleep(60)
""",
}
OWN_HANDLER = """
def handler(number, frame):
    print("my own", flush=True)
    sys.exit(3)
signal.signal(signal.SIGTERM, handler)
"""


def controller(run: Run, script: str, running: Running) -> Running:
    return run(
        sys.executable,
        "-c",
        script,
        str(running.pid),
        place("count", "work"),
        environment={"PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.fixture
def counting(build: Builder, run: Run) -> Running:
    running = run(build("count"), "300000000", "wait", time_limit=60)
    running.expect("ready")
    return running


def signalled(controlling: Running, number: int = signal.SIGTERM) -> Outcome:
    controlling.expect("armed")
    os.kill(controlling.pid, number)
    return controlling.finish()


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_by_a_signal_that_nobody_handles(
    sidestep: ModuleType, run: Run, counting: Running, ending: str, number: signal.Signals
) -> None:
    before = read_state(counting.pid)
    counting.send()
    outcome = signalled(controller(run, ATTACHES + ENDINGS[ending], counting), number)
    assert outcome.status == -number, str(outcome)
    assert remains(before, read_state(counting.pid)) == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_handlers_of_a_program_are_its_own(
    sidestep: ModuleType, run: Run, counting: Running, when: str
) -> None:
    """Ours never comes in their place; the exit that they lead to restores as any."""
    before = read_state(counting.pid)
    own = OWN_HANDLER
    attaches = "import signal, sys\n" + own + ATTACHES if when == "before" else ATTACHES + own
    outcome = signalled(controller(run, attaches + ENDINGS["sleeping"], counting))
    assert (outcome.status, outcome.output.splitlines()[-1]) == (3, "my own"), str(outcome)
    assert remains(before, read_state(counting.pid)) == []


def test_after_detaching_nothing_of_ours_is_left(sidestep: ModuleType, run: Run, counting: Running) -> None:
    script = ATTACHES + (
        "assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL\n"
        "target.detach()\n"
        "assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL\n"
        'print("armed", flush=True); time.sleep(60)'
    )
    assert signalled(controller(run, script, counting)).status == -signal.SIGTERM


def test_at_the_exit(sidestep: ModuleType, run: Run, counting: Running) -> None:
    before = read_state(counting.pid)
    assert controller(run, ATTACHES, counting).finish().status == 0
    assert remains(before, read_state(counting.pid)) == []
