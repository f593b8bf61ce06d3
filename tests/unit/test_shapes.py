"""Every shape, read back by the decoder."""

from __future__ import annotations

import pytest

from sidestep.arch.x86_64 import insn, shapes
from sidestep.arch.x86_64.shapes import Piece, RipRelative, at, fs, rip

HERE = 0x7F00_0000_0000
THERE = HERE + 0x1000


def text(piece: Piece) -> str:
    code = piece.at(HERE) if isinstance(piece, RipRelative) else piece
    instructions = insn.decode(code, HERE)
    assert instructions[-1].next_ip == HERE + len(code)
    return "; ".join(insn.text(each) for each in instructions)


@pytest.mark.parametrize(
    ("piece", "expected"),
    [
        (shapes.mov("rax", "rcx"), "mov %rcx,%rax"),
        (shapes.mov("r12d", "r9d"), "mov %r9d,%r12d"),
        (shapes.mov("rax", at("rsp", 8)), "mov 8(%rsp),%rax"),
        (shapes.mov("rax", at("rsp", -0x80)), "mov -0x80(%rsp),%rax"),
        (shapes.mov("rax", at("rsp", 0x80)), "mov 0x80(%rsp),%rax"),
        (shapes.mov("eax", at("r13")), "mov (%r13),%eax"),
        (shapes.mov("ax", at("rbp")), "mov (%rbp),%ax"),
        (shapes.mov("sil", at("r12", 0, "r9", 8)), "mov (%r12,%r9,8),%sil"),
        (shapes.mov(at("rdi", 0x1234), "rdx"), "mov %rdx,0x1234(%rdi)"),
        (shapes.mov(at("rdi"), "dil"), "mov %dil,(%rdi)"),
        (shapes.mov(at("rdi"), -1), "movq $0xffffffffffffffff,(%rdi)"),
        (shapes.mov(at("rdi"), 0x5D57, 16), "movw $0x5d57,(%rdi)"),
        (shapes.mov(at("rdi"), 0xFFFF_FFFF, 32), "movl $0xffffffff,(%rdi)"),
        (shapes.mov(rip(THERE), 7, 32), f"movl $7,{THERE:#x}"),
        (shapes.mov("rax", rip(THERE)), f"mov {THERE:#x},%rax"),
        (shapes.mov("rax", fs(0)), "mov %fs:0,%rax"),
        (shapes.mov("eax", fs(0x2D0)), "mov %fs:0x2d0,%eax"),
        (shapes.mov("rax", fs(8, "rcx")), "mov %fs:8(%rcx),%rax"),
        (shapes.mov("rax", at("none", 0x1000)), "mov 0x1000,%rax"),
        (shapes.mov("rax", 0), "mov $0,%eax"),
        (shapes.mov("r15", 0xFFFF_FFFF), "mov $0xffffffff,%r15d"),
        (shapes.mov("rdx", -2), "mov $0xfffffffffffffffe,%rdx"),
        (shapes.mov("r8", 1 << 63), "movabs $0x8000000000000000,%r8"),
        (shapes.mov("r8", 0x7FFF_1234_5678), "movabs $0x7fff12345678,%r8"),
        (shapes.mov("ecx", -1), "mov $0xffffffff,%ecx"),
        (shapes.mov("al", 3), "mov $3,%al"),
        (shapes.movzx("eax", at("rdi", 2), 8), "movzbl 2(%rdi),%eax"),
        (shapes.movzx("rax", "cx", 16), "movzwq %cx,%rax"),
        (shapes.movsx("rax", at("rdi"), 32), "movslq (%rdi),%rax"),
        (shapes.movsx("rax", "cl", 8), "movsbq %cl,%rax"),
        (shapes.lea("rsp", at("rsp", -128)), "lea -0x80(%rsp),%rsp"),
        (shapes.lea("r10", rip(THERE)), f"lea {THERE:#x},%r10"),
        (shapes.add("rax", 1), "add $1,%rax"),
        (shapes.add("rax", 0x80), "add $0x80,%rax"),
        (shapes.add(rip(THERE), 1, lock=True), f"lock addq $1,{THERE:#x}"),
        (shapes.add(rip(THERE), 0x1000), f"addq $0x1000,{THERE:#x}"),
        (shapes.sub("rsp", 0x20), "sub $0x20,%rsp"),
        (shapes.sub("rax", at("rcx")), "sub (%rcx),%rax"),
        (shapes.and_("eax", 0xFFFF_F000), "and $0xfffff000,%eax"),
        (shapes.and_("rax", -16), "and $0xfffffffffffffff0,%rax"),
        (shapes.or_(at("rdi"), 0x100, 32, lock=True), "lock orl $0x100,(%rdi)"),
        (shapes.xor("eax", "eax"), "xor %eax,%eax"),
        (shapes.cmp("rax", at("rdi", 8)), "cmp 8(%rdi),%rax"),
        (shapes.cmp(at("rdi", 8), "rax"), "cmp %rax,8(%rdi)"),
        (shapes.cmp(rip(THERE), 0x1234, 16), f"cmpw $0x1234,{THERE:#x}"),
        (shapes.cmp("al", 200), "cmp $0xc8,%al"),
        (shapes.test("rax", "rax"), "test %rax,%rax"),
        (shapes.test(at("rdi"), 0x80, 8), "testb $0x80,(%rdi)"),
        (shapes.shl("rdx", 32), "shl $0x20,%rdx"),
        (shapes.shr("eax", 3), "shr $3,%eax"),
        (shapes.sar("rax", 63), "sar $0x3f,%rax"),
        (shapes.imul("rax", "rdx"), "imul %rdx,%rax"),
        (shapes.xchg(at("rdi"), "rax"), "xchg %rax,(%rdi)"),
        (shapes.xadd(at("rdi"), "eax", lock=True), "lock xadd %eax,(%rdi)"),
        (shapes.cmpxchg(rip(THERE), "rcx", lock=True), f"lock cmpxchg %rcx,{THERE:#x}"),
        (shapes.cmov("ne", "rax", "rcx"), "cmovne %rcx,%rax"),
        (shapes.inc(rip(THERE), lock=True), f"lock incq {THERE:#x}"),
        (shapes.inc(at("rax", 0, "rcx", 8), 32), "incl (%rax,%rcx,8)"),
        (shapes.dec("ecx"), "dec %ecx"),
        (shapes.neg("rax"), "neg %rax"),
        (shapes.not_("rax"), "not %rax"),
        (shapes.set_if("e", "al"), "sete %al"),
        (shapes.push("r12"), "push %r12"),
        (shapes.push(5), "push $5"),
        (shapes.push(-0x8000_0000), "push $0xffffffff80000000"),
        (shapes.push(at("rax", 3)), "pushq 3(%rax)"),
        (shapes.pop("rbx"), "pop %rbx"),
        (shapes.pop(at("rbx")), "popq (%rbx)"),
        (shapes.jump_through("r11"), "jmp *%r11"),
        (shapes.call_through(rip(THERE)), f"callq *{THERE:#x}"),
        (shapes.PUSHF, "pushf"),
        (shapes.POPF, "popf"),
        (shapes.LAHF + shapes.SETO_AL, "lahf; seto %al"),
        (shapes.RESTORE_OVERFLOW + shapes.SAHF, "add $0x7f,%al; sahf"),
        (shapes.RDTSC + shapes.RDTSCP, "rdtsc; rdtscp"),
        (shapes.SYSCALL + shapes.RET, "syscall; ret"),
        (shapes.NOP + shapes.INT3 + shapes.UD2 + shapes.CLD, "nop; int3; ud2; cld"),
        (
            shapes.PAUSE + shapes.REP_MOVSB + shapes.REP_STOSQ,
            "pause; rep movsb (%rsi),(%rdi); rep stos %rax,(%rdi)",
        ),
    ],
)
def test_shapes_are_what_they_say(piece: Piece, expected: str) -> None:
    assert text(piece) == expected


def test_what_does_not_fit_is_an_error() -> None:
    for make in (
        lambda: shapes.mov(at("rdi"), 1 << 32, 32),
        lambda: shapes.mov(at("rdi"), 1 << 40),
        lambda: shapes.add("rax", 1 << 33),
        lambda: shapes.cmp("al", 256),
        lambda: shapes.mov("rax", rip(HERE + (1 << 32))).at(HERE),  # type: ignore[union-attr]
    ):
        with pytest.raises(ValueError, match=r"fit|reach"):
            make()
    with pytest.raises(KeyError):
        shapes.mov("rax", "rxx")


def test_a_rip_relative_shape_keeps_its_target_wherever_it_runs() -> None:
    piece = shapes.cmp(rip(THERE), 5, 32)
    assert isinstance(piece, RipRelative)
    for address in (HERE, HERE + 0x7FFF_0000, HERE - 0x7FFF_0000):
        (instruction,) = insn.decode(piece.at(address), address)
        assert insn.rip_target(instruction) == THERE
