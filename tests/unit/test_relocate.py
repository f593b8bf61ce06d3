"""Relocation: what is refused and why, and the maps between old and new addresses.

That copies behave like their originals is tested by running them, in tests/differential.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sidestep.arch.x86_64 import insn
from sidestep.arch.x86_64.relocate import Point, Relocator, region_refusal, relocatable
from sidestep.arch.x86_64.writer import Assembler
from sidestep.errors import NOT_RELOCATABLE, ProbeError

HERE = 0x7F00_0000_0000
THERE = HERE + 0x10_0000


def relocated(code: str, there: int = THERE, *, keep_bytes: bool = True) -> Relocator:
    raw = bytes.fromhex(code)
    instructions = insn.decode(raw, HERE, amd=False)
    relocator = Relocator(Assembler(there), instructions, raw if keep_bytes else None)
    for index in range(len(instructions)):
        relocator.copy(index)
    relocator.leave()
    return relocator


def disassembly(relocator: Relocator) -> list[str]:
    assembler = relocator.assembler
    return [insn.text(each) for each in insn.decode(assembler.finish(), assembler.address)]


REFUSED = {
    "cc": ("int3", "own address"),
    "cd80": ("int $0x80", "own address"),
    "f1": ("int1", "own address"),
    "0f0b": ("ud2", "fault at its own address"),
    "0fb9c0": ("ud1 %eax,%eax", "fault at its own address"),
    "0fffc0": ("ud0 %eax,%eax", "fault at its own address"),
    "f4": ("hlt", "privilege"),
    "fa": ("cli", "privilege"),
    "e460": ("in $0x60,%al", "privilege"),
    "6e": ("outsb (%rsi),%dx", "privilege"),
    "0f22d8": ("mov %rax,%cr3", "privilege"),
    "0f32": ("rdmsr", "privilege"),
    "0f01f8": ("swapgs", "privilege"),
    "0f35": ("sysexitl", "privilege"),
    "0f34": ("sysenter", "fixed address"),
    "c7f800000000": ("xbegin", "transaction"),
    "0f01d7": ("enclu", "enclave"),
    "8ed0": ("mov %eax,%ss", "holds off traps"),
    "8e10": ("mov (%rax),%ss", "holds off traps"),
    "0fb200": ("lss", "holds off traps"),
    "ff18": ("lcalll *(%rax)", "far call"),
    "48ff18": ("rex.w lcall *(%rax)", "far call"),
    "ff28": ("ljmpl *(%rax)", "far jump"),
    "ffd4": ("call *%rsp", "stack that it pushes to"),
    "ff5424f8": ("callq *-8(%rsp)", "place that it pushes to"),
    "ff5424f1": ("callq *-0xf(%rsp)", "place that it pushes to"),
    "ff54ccf0": ("callq *-0x10(%rsp,%rcx,8)", "place that it pushes to"),
}
ON_AMD = {"0fffc0": "ud0", "48ff18": "lcalll *(%rax)"}  # no ModRM byte, no 64-bit form


@pytest.mark.parametrize("amd", [False, True], ids=["intel", "amd"])
@pytest.mark.parametrize("code", REFUSED)
def test_what_cannot_move_is_refused_by_name(code: str, amd: bool) -> None:
    instruction = insn.decode(bytes.fromhex(code), HERE, amd=amd)[0]
    refusal = relocatable(instruction)
    assert refusal is not None
    assert refusal.reason is NOT_RELOCATABLE
    text, why = REFUSED[code]
    if amd:
        text = ON_AMD.get(code, text)
    assert f"`{text}" in refusal.detail
    assert f"at {HERE:#x}: " in refusal.detail
    assert why in refusal.detail
    with pytest.raises(ProbeError, match="cannot run at another address"):
        relocated("90" + code)


@pytest.mark.parametrize(
    "code", ["660f840000", "66e90000", "66e80000", "66c3", "66ffd0", "66ff20", "66e2fe", "66ebfe"]
)
def test_16_bit_branches_are_refused(code: str) -> None:
    (instruction,) = insn.decode(bytes.fromhex(code), HERE, amd=True)
    refusal = relocatable(instruction)
    assert refusal is not None
    assert "66 prefix" in refusal.detail


@pytest.mark.parametrize(
    "code",
    ["55", "c3", "c20800", "48cf", "cb", "0f05", "ffe0", "ff20", "ff2424", "ffd0", "ff542408", "ff5424f0",
     "ff54cc08", "e2fe", "e3fe", "f3a4", "9c", "9d", "f30f1efa", "0fa2", "0fc7f0", "f00fb10f", "8ed8",
     "0f01d5", "d9742400"],
)  # fmt: skip
def test_the_rest_is_not_refused(code: str) -> None:
    (instruction, *_) = insn.decode(bytes.fromhex(code), HERE)
    assert relocatable(instruction) is None


def test_a_branch_into_the_middle_of_what_moves_is_refused() -> None:
    instructions = insn.decode(bytes.fromhex("7502 4889e5 90"), HERE)  # jne into mov; mov %rsp,%rbp; nop
    refusal = region_refusal(instructions)
    assert refusal is not None
    assert "`jne 0x7f0000000004`" in refusal.detail
    assert "middle of an instruction" in refusal.detail
    with pytest.raises(ProbeError, match="middle of an instruction"):
        relocated("7502 4889e5 90")
    assert region_refusal(insn.decode(bytes.fromhex("7503 4889e5 90"), HERE)) is None


def test_an_operand_beyond_2_gib_is_refused() -> None:
    for code in ("488b0500000000", "ff1500000000", "ff2500000000"):
        with pytest.raises(ProbeError, match="2 GiB"):
            relocated(code, 0x10_0000)
    assert disassembly(relocated("67488d0500000000", 0x10_0000))[0] == "lea 8,%rax"  # EIP-relative: 32 bits


def test_boundaries_and_arrivals() -> None:
    relocator = relocated("55 4889e5 7501 90")  # push %rbp; mov %rsp,%rbp; jne behind the nop; nop
    assert relocator.boundaries == [
        (HERE, THERE), (HERE + 1, THERE + 1), (HERE + 4, THERE + 4), (HERE + 6, THERE + 10),
        (HERE + 7, THERE + 11),
    ]  # fmt: skip
    assert relocator.arrivals == {HERE: THERE, HERE + 1: THERE + 1, HERE + 4: THERE + 4, HERE + 6: THERE + 10}
    assert disassembly(relocator)[-1] == f"jmp {HERE + 7:#x}"
    assert relocator.original(THERE + 4) == Point(THERE + 4, HERE + 4)
    assert relocator.original(THERE + 5) is None


def test_the_address_behind_a_system_call() -> None:
    relocator = relocated("0f05 90")
    assert relocator.boundaries == [
        (HERE, THERE), (HERE + 2, THERE + 2), (HERE + 2, THERE + 12), (HERE + 3, THERE + 13),
    ]  # fmt: skip
    assert disassembly(relocator)[1] == f"movabs ${HERE + 2:#x},%rcx"


def test_points_of_a_call_undo_the_push() -> None:
    relocator = relocated("e8 00010000")
    assert relocator.points == [
        Point(THERE, HERE), Point(THERE + 6, HERE, 8), Point(THERE + 19, HERE + 5),
    ]  # fmt: skip
    assert disassembly(relocator)[:2] == [f"pushq {THERE + 11:#x}", f"jmp {HERE + 0x105:#x}"]
    assert relocator.assembler.finish()[11:19] == (HERE + 5).to_bytes(8, "little")


def test_points_of_islands_say_which_way_the_branch_went() -> None:
    loop = relocated("e2 10")
    assert [point.old for point in loop.points] == [HERE, HERE + 2, HERE + 18, HERE + 2]
    far = relocated("74 10", 0x10_0000)  # jne over an absolute jump, which is taken
    assert far.points == [Point(0x10_0000, HERE), Point(0x10_0002, HERE + 18), Point(0x10_0010, HERE + 2)]


@pytest.mark.parametrize(
    "code", ["e2 10", "74 10", "e8 00010000", "ff542408", "0f05", "eb 10", "ffe0", "c3", "90"]
)
@pytest.mark.parametrize("there", [THERE, 0x10_0000])
def test_every_instruction_of_a_copy_has_a_point(code: str, there: int) -> None:
    relocator = relocated(code, there)
    starts = [point.new for point in relocator.points]
    assert starts == sorted(starts)
    raw = relocator.assembler.finish()
    for point in relocator.points:
        (instruction, *_) = insn.decode(raw[point.new - there :], point.new)
        following = instruction.next_ip if instruction.code != insn.Code.JMP_RM64 else None
        assert following is None or following in starts or insn.direct_branch_target(instruction) is not None


def test_branches_inside_the_dcr_lead_to_copies_and_to_what_stands_before_them() -> None:
    instructions = insn.decode(
        bytes.fromhex("90 75fd 90 ebfd 90"), HERE
    )  # nop; jne start; 1: nop; jmp 1b; nop
    relocator = Relocator(Assembler(THERE), instructions)
    for index in range(5):
        if index == 2:
            relocator.arrive(index)  # a second probe here: whoever arrives runs this first
            relocator.assembler.emit(b"\xf8")  # clc
        relocator.copy(index)
    relocator.leave()
    assert disassembly(relocator) == [
        "nop", f"jne {HERE:#x}", "clc", "nop", f"jmp {THERE + 7:#x}", "nop", f"jmp {HERE + 7:#x}",
    ]  # fmt: skip
    assert relocator.arrivals[HERE + 3] == THERE + 7
    assert (HERE + 3, THERE + 8) in relocator.boundaries


def test_original_bytes_are_kept_and_without_them_prefixes_are_dropped() -> None:
    code = "66666648 8d3d00010000"  # the padded lea of a thread-local access
    assert relocated(code).assembler.finish()[:4].hex() == "66666648"
    shorter = relocated(code, keep_bytes=False)
    assert disassembly(shorter)[0] == disassembly(relocated(code))[0] == f"lea {HERE + 0x10A:#x},%rdi"
    assert shorter.boundaries[1][1] < relocated(code).boundaries[1][1]


def sequence(codes: Sequence[str]) -> list[str]:
    return [disassembly(relocated(code))[0] for code in codes]


def test_conditions_and_prefixes_stay() -> None:
    assert sequence(["7e10", "7f10", "0f8c00010000", "3e7510"]) == [
        f"jle {HERE + 18:#x}", f"jg {HERE + 18:#x}", f"jl {HERE + 0x106:#x}", f"jne {HERE + 19:#x}",
    ]  # fmt: skip
    assert disassembly(relocated("3effd0"))[1] == "notrack jmp *%rax"
    assert disassembly(relocated("64ff10"))[1] == "jmpq *%fs:(%rax)"
    assert disassembly(relocated("67e210"))[0].startswith("loopl")
