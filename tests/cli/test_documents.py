"""What the documents show can be typed as it stands there, and they describe all that is written."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.conftest import ENVIRONMENT, Command, Start
from harness.running import Running

ROOT = Path(__file__).parents[2]
README, API, HANDLERS, OUTPUT = (
    ROOT / name for name in ("README.md", "docs/api.md", "docs/handlers.md", "docs/output.md")
)
NOBODY = "4194304"  # no process has this pid

WORKING = """
import sys, time
print("up", flush=True)
while True:
    bytearray(100_000)
    time.sleep(0.001)
"""


def indented_blocks(document: Path) -> Iterator[str]:
    """The parts of a document that are set off by four blanks."""
    for block in re.findall(r"(?:^(?: {4}.*)?\n)+", document.read_text(), re.M):
        lines = [line.removeprefix("    ") for line in block.split("\n")]
        if any(lines):
            yield "\n".join(lines).strip("\n")


def fenced_blocks(document: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", document.read_text(), re.M | re.S)


def commands() -> Iterator[list[str]]:
    """The words of each `sidestep` command in README.md."""
    for block in indented_blocks(README):
        for line in re.findall(r"^(?:\$ )?sidestep (.*)$", block.replace("\\\n", ""), re.M):
            yield shlex.split(line)


PYTHON = {
    **{f"README {n}": b for n, b in enumerate(indented_blocks(README)) if b.startswith("import ")},
    "api": "\n".join(fenced_blocks(API)),
    "handlers": "\n".join(fenced_blocks(HANDLERS)),
}


def test_the_documents_have_what_is_tested_here() -> None:
    assert len(PYTHON) == 4
    assert len(list(commands())) > 8


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_a_command_of_the_readme_is_understood(command: Command, words: list[str]) -> None:
    """It asks for a process that is not there, or a command that does not exist."""
    if "--" in words:
        words = [*words[: words.index("--") + 1], "/no/such/command"]
    for option in ("-p", "-n"):
        if option in words:
            at = words.index(option)
            words = [*words[:at], "-p", NOBODY, *words[at + 2 :]]
    result = command(*words)
    assert result.code == (127 if "--" in words else 1), result.errors
    assert "no such process" in result.errors or "command not found" in result.errors


@pytest.mark.process
@pytest.mark.parametrize("source", list(PYTHON.values()), ids=list(PYTHON))
def test_python_in_the_documents_runs(run: Start, source: str, tmp_path: Path) -> None:
    program = run(sys.executable, "-c", WORKING)
    program.expect("up")
    source = re.sub(r"attach\(\d+\)", f"attach({program.pid})", source)
    source = re.sub(r"(timeout=|\.wait\()\d+", r"\g<1>0.5", source)
    script = tmp_path / "snippet.py"
    script.write_text(source)
    outcome = run(sys.executable, script, environment=ENVIRONMENT).finish()
    assert outcome.status == 0, str(outcome)
    assert outcome.output


@pytest.mark.process
def test_every_field_of_the_json_output_is_described(
    command: Command, ticking: Running, sidestep: object, tmp_path: Path
) -> None:
    import sidestep as api

    target = ["-p", str(ticking.pid), "--format", "json"]
    program = f"/proc/{ticking.pid}/exe"
    lines = command("trace", *target, "tick", "--stack", "2", "--limit", "1").lines
    lines += command("count", *target, "sample:*", "--duration", "0.1").lines
    lines += command("check", *target, "sample:*").lines + command("funcs", *target, "tick").lines
    lines += command("check", "-f", program, "--all", "--format", "json").lines
    with api.attach(ticking.pid) as probed:
        probed.count("tick")
        lines += command("list", *target).lines
    described = OUTPUT.read_text()
    found = [json.loads(line) for line in lines]
    kinds = {each["type"] for each in found}
    assert kinds == {"event", "summary", "check", "function", "census", "session"}
    for each in found:
        assert f"**{each['type']}**" in described
        parts = [each, *each.get("probes", []), *each.get("refused", [])]
        for field in {field for part in parts for field in part}:
            assert f"`{field}`" in described, field
