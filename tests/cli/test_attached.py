"""Running processes: counted and traced, and left as they were, however the run ends."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.conftest import ENVIRONMENT, SIDESTEP, TICKING, Command, Start
from harness.running import Running
from harness.samples import Samples
from harness.untouched import read_descriptors, read_state, remains

pytestmark = pytest.mark.process


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Fails the test if the condition does not come true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def ticks_on(ticking: Running) -> None:
    """The program works on and ends well."""
    ticking.close_input()
    outcome = ticking.finish()
    assert outcome.status == 0, str(outcome)
    assert outcome.output.splitlines()[-1].startswith("ticks ")


def test_count_for_some_time(command: Command, ticking: Running) -> None:
    before = read_state(ticking.pid)
    result = command("count", "-p", ticking.pid, "tick", "--duration", "0.3")
    assert result.code == 0
    heading, row, last = result.lines
    assert heading.split() == ["HITS", "RATE/S", "PROBE", "MODULE"]
    assert int(row.split()[0]) > 0
    assert last.startswith("0.3 s, 1 probe")
    assert "\x1b" not in result.output + result.errors
    assert remains(before, read_state(ticking.pid)) == []
    ticks_on(ticking)


def test_trace_some_events(command: Command, ticking: Running) -> None:
    before = read_state(ticking.pid)
    result = command(
        "trace", "-p", ticking.pid, "t tick value=$arg1:s64 text=+0($arg2):string", "--limit", "5"
    )
    assert result.code == 0
    assert len(result.lines) == 5
    values = []
    for line in result.lines:
        head, _, fields = line.partition(": t: (tick+0x0) ")
        task, cpu, seconds = head.split()
        assert task == f"sample-{ticking.pid}"
        assert cpu.startswith("[0")
        assert float(seconds) > 0
        value, text = fields.split()
        assert text == 'text="tick"'
        values.append(int(value.removeprefix("value=")))
    assert values == list(range(values[0], values[0] + 5))
    assert "HITS" in result.errors
    assert remains(before, read_state(ticking.pid)) == []
    ticks_on(ticking)


def test_json_on_standard_output(command: Command, ticking: Running) -> None:
    result = command("trace", "-p", ticking.pid, "tick", "--duration", "0.3", "--format", "json")
    *events, summary = [json.loads(line) for line in result.lines]
    assert result.errors == ""
    assert summary["ended"] == "duration"
    (probe,) = summary["probes"]
    assert len(events) + probe["lost"] == probe["hits"] > 0
    assert {event["tid"] for event in events} == {ticking.pid}
    assert probe["hits_by_pid"] == {str(ticking.pid): probe["hits"]}


def test_filters(command: Command, ticking: Running) -> None:
    mine = command("count", "-p", ticking.pid, "tick", "--tid", ticking.pid, "--duration", "0.2")
    matches, hits = mine.lines[1].split()[:2]
    assert matches == hits != "0"
    other = command("count", "-p", ticking.pid, "tick", "--comm", "another", "--duration", "0.2")
    matches, hits = other.lines[1].split()[:2]
    assert matches == "0" != hits


def test_a_limit_of_hits(command: Command, ticking: Running) -> None:
    result = command("count", "-p", ticking.pid, "tick", "--limit", "20", "--format", "json")
    summary = json.loads(result.output)
    assert summary["ended"] == "limit"
    assert summary["probes"][0]["hits"] >= 20


def test_stacks(command: Command, ticking: Running) -> None:
    result = command("trace", "-p", ticking.pid, "tick", "--stack", "4", "--limit", "1")
    assert result.lines[1].strip() == "<stack trace>"
    assert result.lines[2].startswith(" => tick+0x0")


def test_by_name(command: Command, run: Start, ticking: Running, tmp_path: Path) -> None:
    program = tmp_path / f"named{os.getpid()}"
    program.write_bytes(Path(f"/proc/{ticking.pid}/exe").read_bytes())
    program.chmod(0o755)
    run(program)
    wait_until(lambda: command("count", "-n", program.name, "tick", "--duration", "0.1").code == 0)
    assert "no such process" in command("count", "-n", "no-such-name", "tick").errors


def test_a_program_is_known_by_the_name_of_the_link_that_started_it(
    command: Command, run: Start, ticking: Running, tmp_path: Path
) -> None:
    link = tmp_path / f"link{os.getpid()}"
    link.symlink_to(os.readlink(f"/proc/{ticking.pid}/exe"))
    running = run(link)
    running.expect("up")
    result = command("count", "-p", running.pid, f"{link.name}:tick", "--duration", "0.1")
    assert result.lines[1].split()[-2:] == ["tick", "sample"]
    assert command("funcs", "-p", running.pid, f"{link.name}:tick").code == 0


def test_a_probe_is_called_by_its_event_or_its_place(command: Command, ticking: Running) -> None:
    probes = ["mine tick", "tick"]
    result = command("count", "-p", ticking.pid, *probes, "--duration", "0.1", "--format", "json")
    assert [each["probe"] for each in json.loads(result.output)["probes"]] == ["mine", "tick"]


def test_a_glob_of_which_nothing_is_left(command: Command, ticking: Running) -> None:
    result = command("count", "-p", ticking.pid, "[vdso]:*gettime*")
    assert "none of the functions that matched can be probed" in result.errors
    assert "the first: " in result.errors
    assert "probing this code is not allowed" in result.errors
    assert result.code == 1


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("@no_such_name", "no variable and no function has that name: @no_such_name"),
        ("@errno", "@errno is a thread-local variable"),
    ],
)
def test_variables_that_cannot_be_read(
    command: Command, ticking: Running, argument: str, message: str
) -> None:
    result = command("trace", "-p", ticking.pid, f"tick value={argument}")
    assert result.errors.startswith("sidestep: tick: ")
    assert message in result.errors
    assert result.code == 1


def test_a_full_disk_is_said_with_the_file(command: Command, ticking: Running) -> None:
    result = command("count", "-p", ticking.pid, "tick", "--duration", "0.1", "-o", "/dev/full")
    assert result.errors == "sidestep: /dev/full: No space left on device\n"
    assert result.code == 1


def test_a_thread_that_is_not_there_is_said(command: Command, ticking: Running) -> None:
    result = command("count", "-p", ticking.pid, "tick", "--tid", "1", "--duration", "0.1")
    message = f"sidestep: process {ticking.pid} has no thread 1 now, its threads are {ticking.pid}\n"
    assert result.errors == message
    assert result.code == 0
    result = command("count", "-p", ticking.pid, "tick", "--tid", ticking.pid, "--duration", "0.1")
    assert result.errors == ""


def test_nobody_there(command: Command) -> None:
    result = command("count", "-p", "4194304", "malloc")
    assert "no such process" in result.errors
    assert result.code == 1


def test_a_refused_probe_says_why(command: Command, ticking: Running) -> None:
    before = read_state(ticking.pid)
    result = command("count", "-p", ticking.pid, "tick", "tik")
    assert "Did you mean tick" in result.errors
    assert result.code == 1
    assert remains(before, read_state(ticking.pid)) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_restores_and_sums_up(
    sidestep_run: Start, ticking: Running, tmp_path: Path, number: signal.Signals
) -> None:
    before = read_state(ticking.pid)
    out = tmp_path / "out"
    tracing = sidestep_run("trace", "-p", ticking.pid, "tick", "--format", "json", "-o", out)
    wait_until(lambda: out.exists() and out.stat().st_size > 0)
    os.kill(tracing.pid, number)
    outcome = tracing.finish()
    assert outcome.status == 0, str(outcome)
    *events, summary = [json.loads(line) for line in out.read_text().splitlines()]
    assert summary["ended"] == "signal"
    (probe,) = summary["probes"]
    assert len(events) + probe["lost"] == probe["hits"]
    assert remains(before, read_state(ticking.pid)) == []
    ticks_on(ticking)


def test_more_signals_do_not_break_the_restoring(
    sidestep_run: Start, ticking: Running, tmp_path: Path
) -> None:
    before = read_state(ticking.pid)
    out = tmp_path / "out"
    counting = sidestep_run("trace", "-p", ticking.pid, "tick", "libc:*", "-o", out)
    wait_until(lambda: out.exists() and out.stat().st_size > 0)
    for _ in range(20):
        os.kill(counting.pid, signal.SIGINT)
        time.sleep(0.01)
    outcome = counting.finish()
    assert "Traceback" not in outcome.errors
    assert outcome.status == 0, str(outcome)
    assert remains(before, read_state(ticking.pid)) == []
    ticks_on(ticking)


def test_a_reader_that_leaves_ends_it_quietly(run: Start, ticking: Running) -> None:
    before = read_state(ticking.pid)
    line = f"{' '.join(SIDESTEP)} trace -p {ticking.pid} tick | head -n 2"
    outcome = run("bash", "-c", f"{line}; echo ${{PIPESTATUS[0]}}", environment=ENVIRONMENT).finish()
    *events, code = outcome.output.splitlines()
    assert len(events) == 2
    assert code == "0"
    assert outcome.errors == ""
    assert remains(before, read_state(ticking.pid)) == []
    ticks_on(ticking)


def test_the_target_ends_first(sidestep_run: Start, ticking: Running, tmp_path: Path) -> None:
    out = tmp_path / "out"
    tracing = sidestep_run("trace", "-p", ticking.pid, "tick", "--format", "json", "-o", out)
    wait_until(lambda: out.exists() and out.stat().st_size > 0)
    ticking.close_input()
    outcome = tracing.finish()
    assert outcome.status == 0, str(outcome)
    *events, summary = [json.loads(line) for line in out.read_text().splitlines()]
    assert summary["ended"] == "target"
    assert len(events) == summary["probes"][0]["hits"] - summary["lost"]


def test_probes_of_a_killed_controller_are_listed_and_cleaned(
    command: Command, sidestep_run: Start, ticking: Running, tmp_path: Path
) -> None:
    before = read_state(ticking.pid)
    assert "no probes" in command("list", "-p", ticking.pid).errors
    out = tmp_path / "out"
    tracing = sidestep_run("trace", "-p", ticking.pid, "tick", "-o", out)
    wait_until(lambda: out.exists() and out.stat().st_size > 0)
    assert any(line.split()[1:3] == ["k", "tick+0x0"] for line in command("list", "-p", ticking.pid).lines)
    second = command("count", "-p", ticking.pid, "tick")
    assert str(tracing.pid) in second.errors
    assert "end that one: it takes its probes out itself" in second.errors
    assert "end that one" in command("clean", "-p", ticking.pid).errors
    assert second.code == 1
    os.kill(tracing.pid, signal.SIGKILL)
    tracing.process.wait()
    result = command("clean", "-p", ticking.pid)
    assert result.code == 0
    assert remains(before, read_state(ticking.pid)) == []
    assert "nothing to clean" in command("clean", "-p", ticking.pid).output
    ticks_on(ticking)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(run: Start, ticking: Running, closed: str) -> None:
    line = f"{' '.join(SIDESTEP)} count -p {ticking.pid} tick --duration 0.1 {closed}"
    assert run("bash", "-c", line, environment=ENVIRONMENT).finish().status == 0
    ticks_on(ticking)


def test_a_signal_while_probes_are_placed(sidestep_run: Start, ticking: Running) -> None:
    before = read_state(ticking.pid)
    counting = sidestep_run("count", "-p", ticking.pid, "*:*")
    wait_until(lambda: f"/proc/{ticking.pid}/mem" in open_files(counting.pid))
    os.kill(counting.pid, signal.SIGINT)
    outcome = counting.finish()
    assert outcome.errors == "sidestep: interrupted, nothing was changed\n"
    assert outcome.status == 1
    assert remains(before, read_state(ticking.pid)) == []
    ticks_on(ticking)


def open_files(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return list(read_descriptors(pid).values())
    return []


def test_counting_says_which_arguments_it_does_not_record(command: Command, ticking: Running) -> None:
    probe = "tick value=$arg1 text=+0($arg2):string if value > 0"
    result = command("count", "-p", ticking.pid, probe, "--duration", "0.1")
    assert result.errors == "sidestep: tick: count does not record text, `sidestep trace` does\n"
    assert result.code == 0


def test_probes_of_one_name_are_told_apart(command: Command, ticking: Running) -> None:
    probes = ["tick", "tick value=$arg1 if value < 5", "a/t tick", "b/t tick"]
    result = command("count", "-p", ticking.pid, *probes, "--duration", "0.1")
    names = {re.split(" {2,}", line)[-2] for line in result.lines[1:-1]}
    assert names == {"tick", "tick if value < 5", "a/t", "b/t"}


def test_top_is_for_json_too(command: Command, ticking: Running) -> None:
    words = ["count", "-p", ticking.pid, "sample:*", "--duration", "0.2", "--format", "json", "--top", "1"]
    summary = json.loads(command(*words).output)
    assert [each["probe"] for each in summary["probes"]] == ["tick"]
    assert summary["probes_not_shown"] > 0


def test_a_module_by_its_path(command: Command, ticking: Running, tmp_path: Path) -> None:
    program = os.readlink(f"/proc/{ticking.pid}/exe")
    link = tmp_path / "link"
    link.symlink_to(program)
    for path in (program, link):
        assert command("check", "-p", ticking.pid, f"{path}:tick").lines[0].startswith("tick in sample")
    assert "no loaded module has that name" in command("check", "-p", ticking.pid, "/no/such:tick").errors


def test_the_list_as_json(command: Command, sidestep: object, ticking: Running) -> None:
    import sidestep as api

    assert command("list", "-p", ticking.pid, "--format", "json").output == ""
    with api.attach(ticking.pid) as target:
        target.count("tick")
        (session,) = [
            json.loads(line) for line in command("list", "-p", ticking.pid, "--format", "json").lines
        ]
        assert (session["type"], session["controller"], session["alive"]) == ("session", os.getpid(), True)
        (probe,) = session["probes"]
        assert probe == {
            "address": target.resolve("tick").address,
            "module": "sample",
            "symbol": "tick+0x0",
            "disabled": False,
        }


def test_the_name_that_was_asked_for_is_shown_everywhere(
    command: Command, run: Start, samples: Samples
) -> None:
    alias = 'long tock(long, const char *) __attribute__((weak, alias("tick")));'
    running = run(samples(f"{TICKING}\n{alias}", "-O2", "-fno-omit-frame-pointer"))
    running.expect("up")
    for asked, shown in (("tock", "tock"), ("tick", "tick"), ("sample:t?ck", "tick"), ("sample:to*", "tock")):
        result = command("trace", "-p", running.pid, asked, "--stack", "2", "--limit", "1")
        assert f"({shown}+0x0)" in result.lines[0]
        assert result.lines[2] == f" => {shown}+0x0"


def test_of_several_processes_the_parent_is_named(command: Command, run: Start, tmp_path: Path) -> None:
    name = f"forks{os.getpid()}"
    program = tmp_path / name
    program.write_bytes(Path("/bin/sh").resolve().read_bytes())
    program.chmod(0o755)
    os.mkfifo(tmp_path / "fifo")
    waits = f"(read line < {tmp_path}/fifo; true) &"
    running = run(program, "-c", f"{waits} {waits} echo up; wait; true")
    running.expect("up")
    result = command("count", "-n", name, "malloc")
    assert result.code == 1
    assert f"several processes have that name: {running.pid} (parent of 2 of them), " in result.errors


def test_a_refusal_names_what_can_be_probed_instead(command: Command, run: Start, samples: Samples) -> None:
    function = """
    __asm__(".text\\n.globl inside\\n.type inside, @function\\n"
            "inside: push %rbp\\n1: dec %edi\\nmov $1, %eax\\njne 1b\\npop %rbp\\nret\\n"
            ".size inside, . - inside");
    """
    running = run(samples(f"{TICKING}\n{function}", "-O2"))
    running.expect("up")
    result = command("count", "-p", running.pid, "inside", "--duration", "0.1")
    assert "; inside+0x1 can be probed" in result.errors
    assert command("count", "-p", running.pid, "inside+1", "--duration", "0.1").code == 0
