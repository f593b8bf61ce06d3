"""Programs that execute another one: that probes end there is said, and nothing of the new one is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.conftest import Start
from cli.test_attached import wait_until
from harness.samples import Samples

pytestmark = pytest.mark.process

EXECUTING = """
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

__attribute__((noipa)) long tick(long value) { return value + 1; }

int main(void)
{
    struct pollfd input = {0, POLLIN, 0};
    long value = 0;
    puts("up");
    fflush(stdout);
    while (poll(&input, 1, 1) == 0)
        value = tick(value);
    return execlp("cat", "cat", NULL);
}
"""


@pytest.mark.parametrize("command", ["count", "trace"])
def test_a_launched_command_that_executes_another(sidestep_run: Start, tmp_path: Path, command: str) -> None:
    out = tmp_path / "out"
    words = [command, "libc:malloc", "--format", "json", "-o", out, "--", "env", "cat", "/dev/null"]
    outcome = sidestep_run(*words).finish()
    assert outcome.status == 0, str(outcome)
    summary = json.loads(out.read_text().splitlines()[-1])
    assert (summary["ended"], summary["executed"]) == ("exec", "cat")
    said, hint = outcome.errors.splitlines()
    assert said.endswith("(env) has executed another program (cat): probes end with an exec")
    assert "give it as the command itself" in hint


def test_the_exit_code_of_what_was_executed_is_passed_on(sidestep_run: Start) -> None:
    outcome = sidestep_run("count", "libc:malloc", "--", "env", "cat", "/no/such/file").finish()
    assert outcome.status == 1, str(outcome)
    assert "has executed another program (cat)" in outcome.errors


def test_a_name_that_only_the_executed_program_has(sidestep_run: Start) -> None:
    outcome = sidestep_run("count", "no_such_function", "--", "env", "true").finish()
    assert outcome.status == 1
    assert "only env, which is launched, and its libraries are looked at" in outcome.errors


def test_events_have_the_name_of_the_program_that_was_hit(
    run: Start, sidestep_run: Start, samples: Samples, tmp_path: Path
) -> None:
    program = run(samples(EXECUTING, "-O2"))
    program.expect("up")
    out = tmp_path / "out"
    tracing = sidestep_run("trace", "-p", program.pid, "tick", "-o", out)
    wait_until(lambda: out.exists() and out.stat().st_size > 0)
    program.send("now")
    program.expect("now")
    outcome = tracing.finish()
    assert outcome.status == 0, str(outcome)
    assert f"process {program.pid} (sample) has executed another program (cat)" in outcome.errors
    lines = out.read_text().splitlines()
    assert lines
    assert {line.split()[0] for line in lines} == {f"sample-{program.pid}"}
    program.close_input()
    assert program.finish().status == 0


def test_a_program_that_renames_itself_and_ends_has_executed_nothing(
    sidestep_run: Start, samples: Samples, tmp_path: Path
) -> None:
    source = """
    #include <sys/prctl.h>
    __attribute__((noipa)) long work(long value) { return value * 3 + 1; }
    int main(void) { work(1); prctl(PR_SET_NAME, "another"); return 0; }
    """
    out = tmp_path / "out"
    words = ["count", "work", "--format", "json", "-o", out, "--", samples(source, "-O2")]
    outcome = sidestep_run(*words).finish()
    assert (outcome.status, outcome.errors) == (0, "")
    assert json.loads(out.read_text())["ended"] == "target"
