"""The functions of files and processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.conftest import TICKING, Command
from harness.running import Running
from harness.samples import Samples
from harness.untouched import read_areas

SOURCE = """
__attribute__((noipa)) int first(int value) { return value + 1; }
__attribute__((noipa)) int second(int value) { return value + 2; }
int third(int value) __attribute__((alias("second")));
static int plain(int value) { return value; }
static int (*choose(void))(int) { return plain; }
int chosen(int value) __attribute__((ifunc("choose")));
int main(void) { return first(second(chosen(0))); }
"""


def test_functions_of_a_file(command: Command, samples: Samples) -> None:
    file = samples(SOURCE, "-O1")
    result = command("funcs", "-f", file, "*ir*")
    assert result.code == 0
    rows = [line.split() for line in result.lines]
    assert rows[0][:4] == ["ADDRESS", "SIZE", "MODULE", "NAME"]
    names = [row[3] for row in rows[1:]]
    assert "first" in names
    assert result.errors == f"sidestep: {len(names)} function{'s' if len(names) > 1 else ''}\n"


def test_aliases_are_one_function(command: Command, samples: Samples) -> None:
    result = command("funcs", "-f", samples(SOURCE, "-O1"), "third")
    (row,) = [line.split() for line in result.lines[1:]]
    assert row[3:] == ["third", "also", "second"]


def test_an_ifunc_says_so(command: Command, samples: Samples) -> None:
    result = command("funcs", "-f", samples(SOURCE, "-O1"), "chosen")
    assert "IFUNC" in result.lines[1]


def test_json(command: Command, samples: Samples) -> None:
    result = command("funcs", "-f", samples(SOURCE, "-O1"), "second", "--format", "json")
    found = json.loads(result.output)
    assert found["type"] == "function"
    assert found["name"] == found["symbol"] == "second"
    assert found["aliases"] == ["third"]
    assert found["size"] > 0
    assert result.errors == ""


@pytest.mark.parametrize(
    ("glob", "message"),
    [
        ("firsd", "Did you mean first?"),
        ("zzz*", "no function matches zzz*"),
        ("other:first", "no loaded module has that name: other"),
    ],
)
def test_nothing_found(command: Command, samples: Samples, glob: str, message: str) -> None:
    result = command("funcs", "-f", samples(SOURCE, "-O1"), glob)
    assert message in result.errors
    assert result.output == ""
    assert result.code == 1


def test_a_file_that_is_none(command: Command) -> None:
    result = command("funcs", "-f", "/etc/passwd", "main")
    assert "not a usable ELF file" in result.errors
    assert result.code == 1


@pytest.mark.parametrize("glob", ["first", "f*"])
def test_a_file_that_was_cut(command: Command, samples: Samples, tmp_path: Path, glob: str) -> None:
    whole = samples(SOURCE, "-O1").read_bytes()
    cut = tmp_path / "cut"
    cut.write_bytes(whole[:5000])
    for result in (command("funcs", "-f", cut, glob), command("check", "-f", cut, glob)):
        assert "cut is damaged: it has only 5,000 of its" in result.errors
        assert "-p PID" not in result.errors
        assert result.code == 1
    cut.write_bytes(whole[:-100])
    assert "its section headers are missing" in command("funcs", "-f", cut, glob).errors


def test_no_name_reaches_the_terminal_unescaped(command: Command, samples: Samples) -> None:
    source = ".globl bad\n.type bad, @function\n.set bad, code\n.text\ncode: ret\n.globl main\nmain: ret\n"
    file = samples(source.replace("bad", '"b\x1b[31md"'), "-nostartfiles", "-Wl,-emain", suffix=".s")
    result = command("funcs", "-f", file, "b*")
    assert "b\\x1b[31md" in result.output
    assert "\x1b" not in result.output + result.errors


@pytest.mark.process
def test_functions_of_a_process(command: Command, ticking: Running) -> None:
    result = command("funcs", "-p", ticking.pid, "t?ck", "--format", "json")
    found = json.loads(result.output)
    assert found["module"] == "sample"
    code = [area for area in read_areas(ticking.pid) if area.executable and area.path.endswith("sample")]
    assert any(area.start <= found["address"] < area.end for area in code)
    many = command("funcs", "-p", ticking.pid, "libc:*alloc*")
    assert len(many.lines) > 5
    assert all("libc.so" in line for line in many.lines[1:])


def test_the_sample_has_what_other_tests_probe(command: Command, samples: Samples) -> None:
    assert command("funcs", "-f", samples(TICKING, "-O2"), "tick").code == 0
