"""Commands that Sidestep launches: they behave as without it, and their exit code is passed on."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Start
from harness.build import Builder
from harness.running import Running

pytestmark = pytest.mark.process


def read_json(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_count_is_exact_and_the_program_unchanged(
    build: Builder, run: Start, sidestep_run: Start, tmp_path: Path
) -> None:
    program = build("count")
    bare = run(program, "1000").finish()
    out = tmp_path / "out"
    probed = sidestep_run("count", "work", "--format", "json", "-o", out, "--", program, "1000").finish()
    assert (probed.output, probed.errors, probed.status) == (bare.output, "", bare.status)
    (summary,) = read_json(out)
    assert summary["type"] == "summary"
    assert summary["ended"] == "target"
    assert summary["refused"] == []
    (probe,) = summary["probes"]
    assert (probe["probe"], probe["hits"], probe["nmissed"], probe["lost"]) == ("work", 1000, 0, 0)
    assert probe["method"] in ("jump", "region", "padding")


def test_the_table_goes_to_standard_error(build: Builder, sidestep_run: Start) -> None:
    outcome = sidestep_run("count", "work", "--", build("count"), "1000").finish()
    assert outcome.output.splitlines()[-1] == "count 1000 work"
    heading, row, last = outcome.errors.splitlines()
    assert heading.split() == ["HITS", "RATE/S", "PROBE", "MODULE"]
    assert row.split()[0] == "1000"
    assert row.split()[2:] == ["work", "count"]
    assert last.endswith("s, 1 probe")


def test_events_have_their_arguments(build: Builder, sidestep_run: Start, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["trace", "work value=$arg1:s64 if value >= 990", "--format", "json", "-o", out]
    outcome = sidestep_run(*words, "--", build("count"), "1000").finish()
    assert outcome.status == 0
    *events, summary = read_json(out)
    assert [event["args"]["value"] for event in events] == list(range(990, 1000))
    assert all(event["type"] == "event" and event["event"] == "work" for event in events)
    assert [event["time"] for event in events] == sorted(event["time"] for event in events)
    (probe,) = summary["probes"]
    assert (probe["hits"], probe["matched"], probe["lost"]) == (1000, 10, 0)


def test_every_event_of_a_flood_is_accounted_for(build: Builder, sidestep_run: Start, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["trace", "work value=$arg1", "--duration", "0.2", "--format", "json", "-o", out]
    assert sidestep_run(*words, "--", build("count"), "20000000").finish().status == 0
    *events, summary = read_json(out)
    (probe,) = summary["probes"]
    assert summary["events"] == len(events)
    assert summary["lost"] == probe["lost"]
    assert len(events) + probe["lost"] + summary["unread"] == probe["hits"]


def test_text_and_summary_go_into_the_file(build: Builder, sidestep_run: Start, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["trace", "hot work value=$arg1:s64 if value == 7", "-o", out]
    outcome = sidestep_run(*words, "--", build("count"), "1000").finish()
    assert outcome.errors == ""
    event, heading, row, last = out.read_text().splitlines()
    assert event.endswith(": hot: (work+0x0) value=7")
    assert heading.split() == ["MATCHES", "HITS", "PROBE", "MODULE"]
    assert row.split() == ["1", "1000", "hot", "count"]
    assert last.endswith("1 probe, 1 event shown")


def test_hits_of_children_have_their_pid(build: Builder, sidestep_run: Start, tmp_path: Path) -> None:
    out = tmp_path / "out"
    outcome = sidestep_run("count", "work", "--format", "json", "-o", out, "--", build("fork")).finish()
    assert outcome.status == 0
    lines = [line.split() for line in outcome.output.splitlines()]
    (parent, *children) = [(words[1], int(words[2])) for words in lines if words[0] == "count_by_pid"]
    (probe,) = read_json(out)[-1]["probes"]
    # Each child does its work once more when all have said what they did.
    assert probe["hits_by_pid"] == dict([parent, *((pid, 2 * hits) for pid, hits in children)])
    assert probe["hits"] == sum(probe["hits_by_pid"].values())


@pytest.mark.parametrize(("script", "code"), [("exit 3", 3), ("kill -TERM $$", 143), ("kill -KILL $$", 137)])
def test_the_exit_code_is_passed_on(sidestep_run: Start, script: str, code: int) -> None:
    assert sidestep_run("count", "libc:malloc", "--", "sh", "-c", script).finish().status == code


def test_standard_input_belongs_to_the_command(sidestep_run: Start) -> None:
    running = sidestep_run("count", "libc:read", "--", "cat")
    running.send("through the command")
    running.close_input()
    outcome = running.finish()
    assert outcome.output == "through the command"
    assert outcome.status == 0


@pytest.mark.parametrize(
    ("probe", "message", "code"),
    [
        ("libc:no_such_function_at_all", "no function has that name", 1),
        ("libc:no_such_*", "no function has that name", 1),
        ("nothing:malloc", "no loaded module has that name", 1),
        ("libc:malloc+1", "inside an instruction", 1),
        ("libc:malloc size=$arg", "$arg", 2),
    ],
)
def test_a_refused_probe_keeps_the_command_from_running(
    sidestep_run: Start, tmp_path: Path, probe: str, message: str, code: int
) -> None:
    outcome = sidestep_run("count", probe, "--", "touch", tmp_path / "ran").finish()
    assert message in outcome.errors
    assert outcome.status == code
    assert not (tmp_path / "ran").exists()


def test_commands_that_cannot_be_run(sidestep_run: Start, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("no program\n")
    missing = sidestep_run("count", "malloc", "--", tmp_path / "missing").finish()
    assert "command not found" in missing.errors
    assert missing.status == 127
    refused = sidestep_run("count", "malloc", "--", text).finish()
    assert "Permission denied" in refused.errors
    assert refused.status == 126


def test_a_glob_says_what_it_left_out(sidestep_run: Start, tmp_path: Path) -> None:
    out = tmp_path / "out"
    outcome = sidestep_run("count", "libc:*", "--format", "json", "-o", out, "--", "true").finish()
    assert outcome.status == 0
    (summary,) = read_json(out)
    refused = summary["refused"]
    assert len(summary["probes"]) > 1000
    assert refused
    assert all(set(each) == {"probe", "reason", "detail"} for each in refused)
    first = outcome.errors.splitlines()[0]
    total = len(refused) + len(summary["probes"])
    assert first == f"sidestep: {len(refused):,} of {total:,} functions cannot be probed:"
    counted = [int(line.split()[0].replace(",", "")) for line in outcome.errors.splitlines()[1:]]
    assert sum(counted) == len(refused)


def test_a_program_that_may_still_install_handlers(sidestep_run: Start) -> None:
    """It gets them when it comes to that; instructions that may fault are probed from the beginning."""
    outcome = sidestep_run("count", "libc:strlen", "libc:opendir", "--", "ls", "/").finish()
    assert outcome.status == 0, str(outcome)
    assert "strlen" in outcome.errors
    assert "may-fault" not in outcome.errors


def test_a_program_whose_handlers_could_not_be_guarded(sidestep_run: Start, build: Builder) -> None:
    outcome = sidestep_run("count", "touch", "touch_first", "--", build("fault", "musl")).finish()
    assert "the program has not begun: it may install handlers for faults" in outcome.errors
    assert "attach with -p when it has begun" in outcome.errors
    assert (outcome.status, outcome.output) == (1, "")


def cat_with_probes(sidestep_run: Start) -> Running:
    """`cat`, launched, once it has copied a line."""
    running = sidestep_run("count", "libc:write", "--", "cat")
    running.send("first")
    running.expect("first")
    return running


def test_after_an_interrupt_the_command_runs_on(sidestep_run: Start) -> None:
    running = cat_with_probes(sidestep_run)
    os.kill(running.pid, signal.SIGINT)
    running.send("second")
    running.expect("second")
    running.close_input()
    outcome = running.finish()
    assert outcome.status == 0, str(outcome)
    assert "HITS" in outcome.errors


def test_a_termination_is_passed_on(sidestep_run: Start) -> None:
    running = cat_with_probes(sidestep_run)
    os.kill(running.pid, signal.SIGTERM)
    outcome = running.finish()
    assert outcome.status == 128 + signal.SIGTERM, str(outcome)
    assert "HITS" in outcome.errors


def test_a_full_disk_is_said_and_the_command_runs_on(sidestep_run: Start) -> None:
    line = ["trace", "libc:write", "-o", "/dev/full", "--", "sh", "-c", "echo out; exit 4"]
    outcome = sidestep_run(*line).finish()
    assert outcome.output == "out"
    assert outcome.errors == "sidestep: /dev/full: No space left on device\n"
    assert outcome.status == 4
