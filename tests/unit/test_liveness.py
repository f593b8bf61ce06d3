"""Liveness at a probepoint, and what one instruction reads and replaces."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sidestep.arch.x86_64 import insn, shapes
from sidestep.arch.x86_64.effects import ALL_FLAGS, ALL_REGISTERS, REGISTER_BITS, effects
from sidestep.arch.x86_64.liveness import SCRATCH_REGISTERS, Liveness, live
from sidestep.arch.x86_64.shapes import at, mov
from sidestep.arch.x86_64.writer import Assembler

HERE = 0x40_1000


def liveness(write: Callable[[Assembler], None], *, entry: bool = False, patience: int = 64) -> Liveness:
    assembler = Assembler(HERE)
    write(assembler)
    return live(insn.decode(assembler.finish(), HERE), HERE, entry=entry, patience=patience)


def test_a_register_that_is_replaced_first_is_dead() -> None:
    def code(a: Assembler) -> None:
        a.emit(mov("rcx", at("rdi")))
        a.emit(mov("eax", 1))  # clears the upper half, too
        a.emit(mov("dl", 1))  # does not
        a.emit(shapes.add("rcx", "rsi"))
        a.emit(shapes.RET)

    found = liveness(code)
    assert found.dead == ("rax", "rcx")
    assert not found.flags
    assert "rcx" not in found.registers
    assert {"rdx", "rsi", "rdi", "r11", "rsp"} <= found.registers


def test_reading_makes_live_and_zeroing_does_not_read() -> None:
    def code(a: Assembler) -> None:
        a.emit(shapes.xor("eax", "eax"))
        a.emit(shapes.sub("rcx", "rcx"))
        a.emit(shapes.add("rdx", "rdx"))
        a.emit(mov("edx", 0))
        a.emit(shapes.RET)

    assert liveness(code).dead == ("rax", "rcx")


@pytest.mark.parametrize("taken_replaces", [True, False])
def test_both_ways_of_a_branch_count(taken_replaces: bool) -> None:
    def code(a: Assembler) -> None:
        a.jump_if("e", "taken")
        a.emit(mov("eax", 1))
        a.emit(shapes.RET)
        a.label("taken")
        a.emit(mov("eax", 2) if taken_replaces else shapes.NOP)
        a.emit(shapes.RET)

    found = liveness(code)
    assert found.dead == (("rax",) if taken_replaces else ())
    assert found.flags  # the branch reads ZF


def test_loops_end() -> None:
    def code(a: Assembler) -> None:
        a.label("again")
        a.emit(shapes.dec("rdi"))
        a.jump_if("ne", "again")
        a.emit(mov("eax", 1))
        a.emit(mov("ecx", 1))
        a.jump("again2")
        a.label("again2")
        a.jump("again2")

    # CF is not touched by dec, and nothing reads it in the endless loop at the end.
    assert liveness(code).dead == ("r11", "r10", "rax", "rcx", "rdx", "r9", "r8", "rsi")
    assert not liveness(code).flags


@pytest.mark.parametrize(
    "end", ["ret", "call", "jump out", "through", "syscall", "behind", "patience", "trap"]
)
def test_whatever_is_unknown_keeps_the_rest_alive(end: str) -> None:
    def code(a: Assembler) -> None:
        a.emit(mov("eax", 1))
        if end == "ret":
            a.emit(shapes.RET)
        elif end == "call":
            a.call_to(HERE + 0x1000)
        elif end == "jump out":
            a.jump_to(HERE + 0x1000)
        elif end == "through":
            a.emit(shapes.jump_through("r11"))
        elif end == "syscall":
            a.emit(shapes.SYSCALL)
        elif end == "trap":
            a.emit(shapes.INT3)
        elif end == "patience":
            a.raw(shapes.NOP * 100)
        a.raw(b"".join(bytes(mov(name, 0)) for name in SCRATCH_REGISTERS) if end != "behind" else b"")

    found = liveness(code)
    assert found.dead == (("r11", "rax", "rcx") if end == "syscall" else ("rax",))
    assert found.flags


def test_flags_at_an_entry_are_dead_unless_something_reads_them() -> None:
    def call(a: Assembler) -> None:
        a.emit(shapes.push("rbp"))
        a.call_to(HERE + 0x1000)

    def read(a: Assembler) -> None:
        a.emit(shapes.push("rbp"))
        a.emit(shapes.set_if("b", "al"))
        a.emit(shapes.RET)

    def system_call(a: Assembler) -> None:
        a.emit(mov("eax", 39))
        a.emit(shapes.SYSCALL)
        a.emit(shapes.RET)

    assert liveness(call).flags
    assert not liveness(call, entry=True).flags
    assert liveness(read, entry=True).flags
    assert liveness(system_call).flags
    assert not liveness(system_call, entry=True).flags


def test_an_address_that_is_no_instruction_has_everything_live() -> None:
    instructions = insn.decode(bytes(mov("eax", 1)), HERE)
    assert live(instructions, HERE + 1) == live([], HERE) == Liveness(frozenset(REGISTER_BITS), True, ())


def bits(*names: str) -> int:
    return sum(REGISTER_BITS[name] for name in names)


@pytest.mark.parametrize(
    ("code", "replaces", "reads"),
    [
        ("d3e0", ("rax",), ("rax", "rcx")),  # shl %cl,%eax: flags stay if cl is 0
        ("f3a6", (), ("rcx", "rsi", "rdi")),  # repe cmpsb: nothing happens if rcx is 0
        ("0fbcc1", (), ("rcx",)),  # bsf %ecx,%eax: no result for 0
        ("f3480f1ec8", (), ()),  # rdsspq %rax: nothing without shadow stacks
        ("0f44c1", ("rax",), ("rax", "rcx")),  # cmove %ecx,%eax
        ("480f44c1", (), ("rcx",)),  # cmove %rcx,%rax
        ("88c8", (), ("rcx",)),  # mov %cl,%al
        ("6689c8", (), ("rcx",)),  # mov %cx,%ax
        ("31c0", ("rax",), ()),  # xor %eax,%eax
        ("0fa2", ("rax", "rbx", "rcx", "rdx"), ("rax", "rcx")),  # cpuid
        ("58", ("rax",), ("rsp",)),  # pop %rax
    ],
)
def test_effects(code: str, replaces: tuple[str, ...], reads: tuple[str, ...]) -> None:
    (instruction,) = insn.decode(bytes.fromhex(code), HERE)
    found = effects(instruction)
    assert found.replaces & ALL_REGISTERS & ~bits("rsp") == bits(*replaces)
    assert found.reads & ALL_REGISTERS == bits(*reads)
    assert found.replaces & ~found.writes == 0
    if code in ("d3e0", "f3a6"):
        assert found.replaces & ALL_FLAGS == 0
        assert found.writes & ALL_FLAGS == ALL_FLAGS
    if code == "31c0":
        assert found.replaces & ALL_FLAGS == ALL_FLAGS


def test_a_system_call_reads_every_register_and_clobbers_two() -> None:
    (instruction,) = insn.decode(shapes.SYSCALL, HERE)
    found = effects(instruction)
    assert found.reads == ALL_REGISTERS & ~bits("rcx", "r11")
    assert found.replaces == bits("rcx", "r11")
    assert found.writes == bits("rax", "rcx", "r11")


def test_no_more_registers_are_looked_for_than_are_enough() -> None:
    def code(a: Assembler) -> None:
        a.emit(mov("eax", 1))
        a.emit(shapes.xor("ecx", "ecx"))
        a.emit(mov("edx", 1))
        a.emit(shapes.RET)

    assembler = Assembler(HERE)
    code(assembler)
    instructions = insn.decode(assembler.finish(), HERE)
    assert live(instructions, HERE).dead == ("rax", "rcx", "rdx")
    assert live(instructions, HERE, enough=2) == live(instructions, HERE, enough=1)
    assert live(instructions, HERE, enough=2).dead == ("rax", "rcx")
    assert not live(instructions, HERE, enough=2).flags


def test_registers_behind_a_branch_are_looked_for_on_all_ways() -> None:
    def code(a: Assembler) -> None:
        a.emit(shapes.test("edi", "edi"))
        a.jump_if("e", "else")
        a.emit(mov("eax", 1))
        a.emit(mov("ecx", 1))
        a.emit(shapes.RET)
        a.label("else")
        a.emit(mov("eax", 2))
        a.emit(shapes.RET)

    assembler = Assembler(HERE)
    code(assembler)
    instructions = insn.decode(assembler.finish(), HERE)
    assert live(instructions, HERE, enough=1).dead == live(instructions, HERE).dead == ("rax",)
