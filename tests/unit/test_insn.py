"""Decoding and what one instruction is."""

from __future__ import annotations

import pytest

from sidestep.arch.x86_64 import insn

HERE = 0x40_1000


def one(code: str, *, amd: bool = False) -> insn.Instruction:
    (instruction,) = insn.decode(bytes.fromhex(code), HERE, amd=amd)
    return instruction


def test_decoding_stops_before_what_is_no_instruction() -> None:
    instructions = insn.decode(bytes.fromhex("55 4889e5 06 90"), HERE)  # push %rbp; mov %rsp,%rbp; (bad); nop
    assert [insn.text(each) for each in instructions] == ["push %rbp", "mov %rsp,%rbp"]
    assert insn.boundaries(instructions) == [HERE, HERE + 1, HERE + 4]
    assert insn.decode(b"", HERE) == []
    assert insn.decode(bytes.fromhex("48 8b"), HERE) == []  # the start of a mov
    assert insn.boundaries([]) == []


def test_the_instruction_that_holds_an_address() -> None:
    instructions = insn.decode(bytes.fromhex("55 4889e5 90"), HERE)
    holding = [insn.containing(instructions, HERE + offset) for offset in range(-1, 6)]
    assert [each and each.ip - HERE for each in holding] == [None, 0, 1, 1, 1, 4, None]


@pytest.mark.parametrize(
    ("code", "target"),
    [
        ("eb 05", HERE + 7),  # jmp
        ("e9 00010000", HERE + 0x105),
        ("74 fe", HERE),  # je
        ("0f84 f0ffffff", HERE - 10),
        ("e8 00000000", HERE + 5),  # call
        ("e2 10", HERE + 18),  # loop
        ("67 e3 10", HERE + 19),  # jecxz
        ("c7f8 10000000", HERE + 22),  # xbegin
        ("ffe0", None),  # jmp *%rax
        ("ff15 00000000", None),  # call *0(%rip)
        ("0f05", None),  # syscall
        ("c3", None),  # ret
        ("90", None),
    ],
)
def test_direct_branch_targets(code: str, target: int | None) -> None:
    assert insn.direct_branch_target(one(code)) == target


def test_calls_are_calls_and_nothing_else_is() -> None:
    assert [insn.is_call(one(code)) for code in ("e800000000", "ffd0", "ff10", "ff18")] == [True] * 4
    others = (
        "0f05",
        "0f34",
        "0f01c1",
        "0f01d9",
        "e900000000",
        "ffe0",
        "c3",
        "cc",
    )  # syscall, sysenter, vmcall ...
    assert not any(insn.is_call(one(code)) for code in others)
    assert insn.is_syscall(one("0f05"))


@pytest.mark.parametrize(
    ("code", "goes_on"),
    [("90", True), ("74fe", True), ("e2fe", True), ("e800000000", True), ("0f05", True), ("ffd0", True),
     ("ebfe", False), ("ffe0", False), ("c3", False), ("c20800", False), ("cc", False), ("0f0b", False)],
)  # fmt: skip
def test_falling_through(code: str, goes_on: bool) -> None:
    assert insn.falls_through(one(code)) is goes_on


def test_a_66_prefix_on_a_branch_is_read_as_the_processor_does() -> None:
    code = "66 0f84 00000000"
    assert not insn.is_16_bit_branch(one(code))
    (jump, *_) = insn.decode(bytes.fromhex(code), HERE, amd=True)
    assert jump.len == 5
    assert insn.is_16_bit_branch(jump)
    for other in ("66c3", "66c20000", "66ffd0", "66ff20", "66e80000", "66ebfe", "66e2fe"):
        assert insn.is_16_bit_branch(one(other, amd=True)), other
    assert not insn.is_16_bit_branch(
        one("6648e800000000", amd=True)
    )  # the data16 padding of a thread-local call


@pytest.mark.parametrize(
    "code",
    [
        "488b07",  # mov (%rdi),%rax
        "488907",  # mov %rax,(%rdi)
        "ff30",  # push (%rax)
        "8f00",  # pop (%rax)
        "ff20",  # jmp *(%rax)
        "488b0425 10000000",  # mov 0x10,%rax
        "f3a4",  # rep movsb
        "ac",  # lodsb
        "d7",  # xlat
        "488b0404",  # mov (%rsp,%rax,1),%rax
        "488b842400f0ffff",  # mov -0x1000(%rsp),%rax: probes the guard page
        "64488b00",  # mov %fs:(%rax),%rax
        "48f7f1",  # div %rcx
        "f7f9",  # idiv %ecx
        "0f280424",  # movaps (%rsp),%xmm0: alignment
        "66450f6f0c24",  # movdqa (%r12),%xmm9
        "c5fc280424",  # vmovaps (%rsp),%ymm0
        "0f2805 04000000",  # movaps that is not aligned
        "480fc70c24",  # cmpxchg16b (%rsp)
        "0fae1424",  # ldmxcsr (%rsp)
        "0f0b",  # ud2
        "cc",  # int3
        "f4",  # hlt
        "e460",  # in $0x60,%al
        "0f01d0",  # xgetbv
        "8ee0",  # mov %eax,%fs
        "f3480faed0",  # wrfsbase %rax
        "48cf",  # iretq
        "62f27d4992048d00000000",  # vgatherdps (,%zmm1,4),%zmm0{%k1}
        "660ff7c1",  # maskmovdqu %xmm1,%xmm0
    ],
)
def test_what_can_fault(code: str) -> None:
    assert insn.can_fault(one(code))


@pytest.mark.parametrize(
    "code",
    [
        "4889c8",  # mov %rcx,%rax
        "488d07",  # lea (%rdi),%rax
        "0f1f4000",  # nopl 0(%rax)
        "0f1808",  # prefetcht0 (%rax)
        "55",  # push %rbp
        "c9",  # leave
        "c3",  # ret
        "c8100000",  # enter
        "e800000000",  # call
        "ffd0",  # call *%rax
        "488b442408",  # mov 8(%rsp),%rax
        "8b442480",  # mov -0x80(%rsp),%eax
        "488b05 10000000",  # mov 0x10(%rip),%rax
        "ff25 00000000",  # jmp *0(%rip)
        "0f2805 09000000",  # movaps that is aligned: 0x401010
        "0f100424",  # movups (%rsp),%xmm0
        "c5fc100424",  # vmovups (%rsp),%ymm0
        "c5fc580424",  # vaddps (%rsp),%ymm0,%ymm0
        "64488b042528000000",  # mov %fs:0x28,%rax
        "0f05",  # syscall
        "0fa2",  # cpuid
        "0f31",  # rdtsc
        "f30f1efa",  # endbr64
        "7402",  # je
        "9d",  # popf
    ],
)
def test_what_cannot_fault(code: str) -> None:
    assert not insn.can_fault(one(code))


def test_encoding_after_an_error_starts_afresh() -> None:
    instruction = one("488b05 00000000")  # mov 0(%rip),%rax
    with pytest.raises(ValueError, match="too far"):
        insn.encode(instruction, HERE + (1 << 40))
    assert insn.encode(one("90"), HERE) == b"\x90"


def test_names() -> None:
    assert insn.name(one("f0480fb10f")) == "cmpxchg"
    assert insn.text(one("e8 fb0f0000")) == "call 0x402000"
    assert insn.general_register(insn.register("ah")) == "rax"
    assert insn.general_register(insn.register("r9d")) == "r9"
    assert insn.general_register(insn.register("xmm0")) is None
    assert insn.memory_base(one("ff542408")) == "rsp"
    assert insn.rip_target(one("488b0510000000")) == HERE + 0x17
    assert insn.rip_target(one("488b07")) is None
