"""Filters of system calls: what they answer, with arguments that are known and that are not."""

from __future__ import annotations

import random
import struct

from sidestep.target.process.calls import INJECTED, Call
from sidestep.target.process.filters import ALLOW, Instruction, Program, answers, decode
from sidestep.target.process.seccomp import find_objection

LOAD, LOAD_IMMEDIATE, LOAD_LENGTH, LOAD_MEMORY = 0x20, 0x00, 0x80, 0x60
LOAD_X, STORE, TO_X, TO_A = 0x01, 0x02, 0x07, 0x87
EQUAL, GREATER, AT_LEAST, ANY_BIT, ALWAYS = 0x15, 0x25, 0x35, 0x45, 0x05
RETURN, RETURN_A = 0x06, 0x16
NR, ARCH, IP, ARGUMENTS = 0, 4, 8, 16
KILL, ERRNO = 0x80000000, 0x50000

MMAP = Call("mmap", 9, (None, 1 << 32 | 5, 3))


def filter_of(*rows: tuple[int, ...]) -> Program:
    """Rows are (code, k) or (code, k, if true, if false)."""
    return tuple(Instruction(row[0], *(row[2:] or (0, 0)), row[1]) for row in rows)


def raw(program: Program) -> bytes:
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)


def test_what_a_filter_sees() -> None:
    fields = {NR: 9, ARCH: 0xC000003E, ARGUMENTS + 8: 5, ARGUMENTS + 12: 1, ARGUMENTS + 16: 3}
    for offset, value in fields.items():
        assert answers(filter_of((LOAD, offset), (RETURN_A, 0)), MMAP) == {value}
    for offset in (IP, IP + 4, ARGUMENTS, ARGUMENTS + 4, ARGUMENTS + 24, 64, 1 << 31, 2, 18):
        assert answers(filter_of((LOAD, offset), (RETURN_A, 0)), MMAP) == {None}
    assert answers(filter_of((LOAD_LENGTH, 0), (RETURN_A, 0)), MMAP) == {64}


def test_jumps_on_what_is_known_and_what_is_not() -> None:
    for code, holds in ((EQUAL, False), (GREATER, True), (AT_LEAST, True), (ANY_BIT, True)):
        rows = (code, 1, 0, 1), (RETURN, ALLOW), (RETURN, KILL)
        known = answers(filter_of((LOAD, NR), *rows), MMAP)
        assert known == {ALLOW if holds else KILL}, hex(code)
        assert answers(filter_of((LOAD, ARGUMENTS), *rows), MMAP) == {ALLOW, KILL}
    forward = filter_of((ALWAYS, 1), (RETURN, KILL), (RETURN, ALLOW))
    assert answers(forward, MMAP) == {ALLOW}


def test_arithmetic() -> None:
    operations = {0x00: 9 + 7, 0x10: 2, 0x20: 63, 0x30: 1, 0x40: 15, 0x50: 1, 0x60: 9 << 7, 0x70: 0}
    operations |= {0x80: (1 << 32) - 9, 0x90: 2, 0xA0: 14}
    for operation, result in operations.items():
        constant = filter_of((LOAD, NR), (4 | operation, 7), (RETURN_A, 0))
        assert answers(constant, MMAP) == {result}, hex(operation)
        by_x = filter_of((LOAD_X, 7), (LOAD, NR), (0x0C | operation, 0), (RETURN_A, 0))
        assert answers(by_x, MMAP) == {result}, hex(operation)
        unknown = filter_of((LOAD, ARGUMENTS), (4 | operation, 7), (RETURN_A, 0))
        assert answers(unknown, MMAP) == {None}, hex(operation)


def test_a_division_by_zero_kills() -> None:
    for operation in (0x3C, 0x9C):
        zero = filter_of((LOAD_X, 0), (LOAD, NR), (operation, 0), (RETURN, ALLOW))
        assert 0 in answers(zero, MMAP)
        unknown = filter_of((LOAD, ARGUMENTS), (TO_X, 0), (operation, 0), (RETURN, ALLOW))
        assert answers(unknown, MMAP) == {0, ALLOW}


def test_scratch_memory_and_the_index_register() -> None:
    program = filter_of(
        (LOAD, NR), (STORE, 3), (LOAD_IMMEDIATE, 1), (TO_X, 0), (LOAD_MEMORY, 3), (0x0C, 0), (RETURN_A, 0)
    )
    assert answers(program, MMAP) == {10}
    assert answers(filter_of((LOAD_X, 8), (TO_A, 0), (RETURN_A, 0)), MMAP) == {8}


def test_every_filter_has_to_allow_every_call() -> None:
    allowing = filter_of((RETURN, ALLOW))
    logging = filter_of((RETURN, 0x7FFC0000))
    for value, words in ((KILL, "kills the process"), (ERRNO | 1, "fail"), (0x12340000, "not known")):
        no_mprotect = filter_of((LOAD, NR), (EQUAL, 10, 0, 1), (RETURN, value), (RETURN, ALLOW))
        found = find_objection([raw(each) for each in (allowing, no_mprotect, logging)], INJECTED)
        assert found.startswith("a filter may not allow mprotect")
        assert words in found
    assert find_objection([raw(allowing), raw(logging)], INJECTED) == ""
    assert find_objection((), INJECTED) == ""


def test_programs_that_the_kernel_would_not_take() -> None:
    """They come from the kernel, but nothing relies on it."""
    for program in (
        (),
        filter_of((LOAD, NR)),
        filter_of((ALWAYS, 0xFFFFFFFF), (RETURN, ALLOW)),
        filter_of((EQUAL, 0, 255, 255), (RETURN, ALLOW)),
    ):
        assert answers(program, MMAP) == {None}
    random_bytes = random.Random(3)
    for _ in range(2000):
        program = decode(random_bytes.randbytes(random_bytes.randrange(200)))
        assert answers(program, MMAP)


def test_a_filter_with_too_many_ways_through_it() -> None:
    """Each of 200 bits of unknown values makes two states: given up, which means refused."""
    rows: list[tuple[int, ...]] = []
    for bit in range(200):
        rows += [(LOAD, ARGUMENTS), (ANY_BIT, 1 << bit % 32, 0, 3), (LOAD_MEMORY, 1), (4, 1 << bit % 32)]
        rows += [(STORE, 1)]
    assert None in answers(filter_of(*rows, (RETURN, ALLOW)), MMAP)
