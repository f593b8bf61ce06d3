"""The assembler: labels, reach, what its bytes mean."""

from __future__ import annotations

import pytest

from sidestep.arch.x86_64 import insn, shapes
from sidestep.arch.x86_64.writer import CONDITIONS, Assembler

HERE = 0x7F00_0000_0000
FAR = 0x1234_5678


def disassemble(assembler: Assembler, size: int | None = None) -> list[str]:
    code = assembler.finish()[:size]
    instructions = insn.decode(code, assembler.address)
    assert insn.boundaries(instructions)[-1] == assembler.address + len(code)
    return [insn.text(each) for each in instructions]


def test_labels_forward_and_backward() -> None:
    assembler = Assembler(0x1000)
    assert assembler.label("start") == 0x1000
    assembler.jump("end")
    assembler.jump_if("ne", "start")
    assembler.jump_if(CONDITIONS["a"], "end")
    assembler.call("start")
    assembler.lea("r9", "end")
    assembler.lea("rax", "start")
    assembler.relative(b"\xff\x35", "end")
    assert not assembler.has_label("end")
    assembler.label("end")
    assembler.emit(shapes.RET)
    assert assembler.address_of("end") == 0x102A
    assert disassemble(assembler) == [
        "jmp 0x102a", "jne 0x1000", "ja 0x102a", "call 0x1000", "lea 0x102a,%r9", "lea 0x1000,%rax",
        "pushq 0x102a", "ret",
    ]  # fmt: skip


def test_labels_are_placed_once_and_only_used_when_placed() -> None:
    assembler = Assembler(0)
    assembler.label(("any", 1))
    with pytest.raises(ValueError, match="twice"):
        assembler.label(("any", 1))
    assembler.jump("nowhere")
    with pytest.raises(ValueError, match="'nowhere' was never placed"):
        assembler.finish()


@pytest.mark.parametrize("distance", [-0x8000_0000, -1, 0, 0x7FFF_FFFF])
def test_near_targets_take_five_bytes(distance: int) -> None:
    for jump, text in ((Assembler.jump_to, "jmp"), (Assembler.call_to, "call")):
        assembler = Assembler(HERE)
        jump(assembler, HERE + 5 + distance)
        assert disassemble(assembler) == [f"{text} {HERE + 5 + distance:#x}"]
    assembler = Assembler(HERE)
    assembler.jump_if_to("le", HERE + 6 + distance)
    assert disassemble(assembler) == [f"jle {HERE + 6 + distance:#x}"]


@pytest.mark.parametrize("target", [HERE + 5 + 0x8000_0000, HERE + 4 - 0x8000_0000, FAR, 0x7FFF_FFFF_FFFF])
def test_far_targets_are_read_from_behind_the_jump(target: int) -> None:
    literal = target.to_bytes(8, "little")
    assembler = Assembler(HERE)
    assembler.jump_to(target)
    assert assembler.finish() == bytes.fromhex("ff25 00000000") + literal
    assembler = Assembler(HERE)
    assembler.call_to(target)
    assert assembler.finish() == bytes.fromhex("ff15 02000000 eb08") + literal
    assert assembler.here == HERE + 16
    assembler = Assembler(HERE)
    assembler.jump_if_to("e", target + 1)  # at the edge, a conditional jump is a byte longer
    assert assembler.finish() in (
        bytes.fromhex("750e ff25 00000000") + (target + 1).to_bytes(8, "little"),
        b"\x0f\x84" + (target + 1 - HERE - 6 & 0xFFFF_FFFF).to_bytes(4, "little"),
    )


def test_decoded_instructions_keep_what_they_refer_to() -> None:
    (load, jump) = insn.decode(bytes.fromhex("488b0510000000 e900010000"), HERE)  # mov 0x10(%rip),%rax; jmp
    assembler = Assembler(HERE + 0x1000)
    assembler.emit(load)
    assembler.emit(jump)
    assert disassemble(assembler) == [f"mov {HERE + 0x17:#x},%rax", f"jmp {HERE + 0x10C:#x}"]
    with pytest.raises(ValueError, match="too far"):
        Assembler(0x1000).emit(load)
    assembler.raw(b"\x90")
    assembler.align(16)
    assert len(assembler.finish()) == 16
    assert assembler.finish().endswith(b"\x90\xcc\xcc\xcc")


def test_condition_names_are_those_of_the_decoder() -> None:
    for name, number in CONDITIONS.items():
        assembler = Assembler(0)
        assembler.label(0)
        assembler.jump_if(name, 0)
        (instruction,) = insn.decode(assembler.finish(), 0)
        assert insn.condition_number(instruction) == number
        assert insn.is_conditional(instruction)
