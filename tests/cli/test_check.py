"""Whether a probe can be placed: verdicts in words, over the disassembly, and of a whole file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cli.conftest import Command
from harness.running import Running
from harness.samples import Samples
from harness.untouched import differences, read_state
from sidestep.address import Range
from sidestep.cli.disassembly import Marks, disassemble
from sidestep.symbols.modules import offline_module

SOURCE = """
    .text
    .globl main, region, inside, short
    .type main, @function
main:                       # one instruction of five bytes
    movl $1, %eax
    ret
    .size main, . - main
    .balign 16
    .type region, @function
region:                     # 1 + 3 + 2 bytes
    pushq %rbp
    movq %rsp, %rbp
    xorl %eax, %eax
    popq %rbp
    ret
    .size region, . - region
    .balign 16
    .type inside, @function
inside:                     # a branch leads to its second instruction
    pushq %rbp
1:  decl %edi
    movl $1, %eax
    jne 1b
    popq %rbp
    ret
    .size inside, . - inside
    .type short, @function
short:
    ret
    .size short, . - short
    .type next, @function
next:
    ret
    .size next, . - next
"""


@pytest.fixture
def file(samples: Samples) -> Path:
    return samples(SOURCE, "-nostartfiles", "-Wl,-emain", suffix=".s")


def listing(lines: list[str]) -> list[str]:
    """The instructions without addresses, each run of blanks as one."""
    rows = [line for line in lines if re.match(r"(->|  ) (\||  ?|) *0x", line)]
    return [re.sub(r" +", " ", re.sub(r"0x\w+  ", "", row, count=1)).strip() for row in rows]


def test_a_jump(command: Command, file: Path) -> None:
    result = command("check", "-f", file, "main")
    assert result.code == 0
    assert result.lines[0] == "main in sample"
    assert result.lines[1] == "  can be probed: by a jump in the place of one instruction of 5 bytes [jump]"
    assert listing(result.lines) == ["-> | b8[01 00 00 00] mov $1,%eax", "c3 ret"]


def test_a_region(command: Command, file: Path) -> None:
    result = command("check", "-f", file, "region")
    assert result.lines[1] == "  can be probed: by a jump over 3 instructions, 6 bytes [region]"
    assert listing(result.lines) == [
        "-> | 55 push %rbp",
        "| [48 89 e5] mov %rsp,%rbp",
        "| [31]c0 xor %eax,%eax",
        "5d pop %rbp",
        "c3 ret",
    ]


def test_a_refusal_names_the_rule_and_the_instruction(command: Command, file: Path) -> None:
    result = command("check", "-f", file, "inside")
    assert result.code == 1
    assert result.lines[1].startswith(
        "  cannot be probed: code jumps into the bytes that the jump would cover"
    )
    assert "`jne " in result.lines[1]
    assert result.lines[1].endswith("[jump-into-region]")
    assert "# inside+0x1" in result.output


def test_an_address_inside_an_instruction(command: Command, file: Path) -> None:
    result = command("check", "-f", file, "main+2")
    assert result.code == 1
    assert "[not-a-boundary]" in result.lines[1]
    assert listing(result.lines)[0] == "-> b8 01 00[00 00] mov $1,%eax"


def test_too_short(command: Command, file: Path) -> None:
    result = command("check", "-f", file, "short")
    assert "[too-short]" in result.lines[1]
    assert result.code == 1


def test_many_get_a_line_each(command: Command, file: Path) -> None:
    result = command("check", "-f", file, "*")
    assert result.code == 0
    rows = {line.split()[2]: line.split()[3] for line in result.lines[1:]}
    assert rows["main"] == "jump"
    assert rows["region"] == "region"
    assert rows["inside"] == "jump-into-region"
    assert "2 functions can be probed, 3 cannot" in result.errors


def test_json(command: Command, file: Path) -> None:
    result = command("check", "-f", file, "region", "--format", "json")
    found = json.loads(result.output)
    assert (found["type"], found["probe"], found["ok"], found["method"]) == (
        "check",
        "region",
        True,
        "region",
    )
    assert found["dcr"][1] - found["dcr"][0] == 6
    refused = json.loads(command("check", "-f", file, "short", "--format", "json").output)
    assert (refused["ok"], refused["reason"]) == (False, "too-short")


def test_all_of_a_damaged_file(command: Command, file: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    damaged.write_bytes(file.read_bytes()[:300])
    for options in ([], ["--format", "json"]):
        result = command("check", "-f", damaged, "--all", *options)
        assert "this is not a usable ELF file: it has only 300 of its " in result.errors
        assert (result.output, result.code) == ("", 1)


def test_all(command: Command, file: Path) -> None:
    result = command("check", "-f", file, "--all")
    assert result.code == 0
    assert result.lines[0].split() == ["INSTRUCTIONS", "SHARE", "ENTRIES", "SHARE", "VERDICT", "WHY"]
    assert "of 15 instructions and the entries of 40.0 % of 5 functions can be probed" in result.lines[-1]
    found = json.loads(command("check", "-f", file, "--all", "--format", "json").output)
    assert found["instructions"] == 15
    assert sum(found["by_method"].values()) + sum(found["by_reason"].values()) == 15


def test_a_typing_error(command: Command, file: Path) -> None:
    result = command("check", "-f", file, "main+")
    assert result.code == 2
    assert "^" in result.errors


def test_names_that_are_not_there(command: Command, file: Path) -> None:
    result = command("check", "-f", file, "mein")
    assert "Did you mean main" in result.errors
    assert result.code == 1


def test_marks_without_instructions(file: Path) -> None:
    module = offline_module(str(file))
    (function,) = module.functions.named("main")
    far = function.end + 100
    lines = disassemble(module, function, Marks(far, None, Range(far + 1, far + 5)))
    assert lines == [f"   {far:#x}  no instruction can be decoded here"]


@pytest.mark.process
def test_a_process_is_not_changed(command: Command, ticking: Running) -> None:
    before = read_state(ticking.pid)
    result = command("check", "-p", ticking.pid, "tick")
    assert result.code == 0
    assert result.lines[0].startswith("tick in sample (at 0x")
    assert differences(before, read_state(ticking.pid)) == []


def test_a_refusal_names_an_instruction_that_can_be_probed(command: Command, file: Path) -> None:
    result = command("check", "-f", file, "inside")
    assert "  probe another instruction: sample:inside+0x1 can be" in result.lines
    assert command("check", "-f", file, "sample:inside+0x1").code == 0
    found = json.loads(command("check", "-f", file, "inside", "--format", "json").output)
    assert found["nearest"] == "inside+0x1"
    result = command("check", "-f", file, "short")
    assert "  probe another instruction; none near it can be" in result.lines


@pytest.mark.parametrize(
    ("probes", "code"),
    [(["main", "region"], 0), (["main", "short"], 1), (["main", "*"], 0), (["main", "s*"], 1)],
)
def test_several_probes(command: Command, file: Path, probes: list[str], code: int) -> None:
    assert command("check", "-f", file, *probes).code == code


def test_return_probes_are_refused_as_trace_refuses_them(command: Command, file: Path) -> None:
    result = command("check", "-f", file, "r:main")
    assert "return probes are not there yet" in result.errors
    assert result.code == 2
