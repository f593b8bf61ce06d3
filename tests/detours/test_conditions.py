"""Conditions in machine code against their meaning in Python."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detours.model import State, holds
from detours.player import ALL_LIVE, KEEPS_ALL, MEMORY, MEMORY_SIZE, STACK_TOP, TEXT, Player, event
from sidestep.arch.x86_64.detour import Record
from sidestep.arch.x86_64.insn import GENERAL_REGISTERS
from sidestep.errors import ProbeError, ProbeSyntaxError
from sidestep.spec import parse

SLOT = 64
ARGUMENTS = (
    "a=$arg1 b=$arg2:s32 c=$arg3:u8 d=%r11:s64 e=+0($arg5):u16 f=+8($arg5):s8 g=-8(+16($arg6)):x32"
    " h=$stack1:s16 i=+4($arg5):b5@3/16 j=%cx:s8 k=+0(%bx):u64 l=\\-3:s64 m=+0(+0(%r12)):s32"
)
NAMES = "abcdefghijklm"
FETCHES = (
    "$arg1",
    "$arg4:s16",
    "%ax:u8",
    "+0($arg5):s32",
    "$stack2",
    "+0($arg1)",
    "%flags:u16",
    "$stack",
    "%ip",
)
INTERESTING = (
    0,
    1,
    -1,
    2,
    5,
    127,
    128,
    255,
    256,
    -128,
    32767,
    65535,
    1 << 31,
    -(1 << 31),
    (1 << 32) - 1,
    1 << 63,
)
ARITHMETIC = ("+", "-", "&", "|", "^", "<<", ">>")
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
CONTENTS = struct.pack(
    f"<{MEMORY_SIZE // 8}Q",
    *(random.Random(7).choice((MEMORY + 8 * i, i, -i & (1 << 64) - 1, 0)) for i in range(MEMORY_SIZE // 8)),
)

numbers = st.sampled_from(INTERESTING) | st.integers(-(1 << 63), (1 << 64) - 1) | st.integers(-20, 20)
operands = st.recursive(
    st.sampled_from(tuple(NAMES)) | st.sampled_from(FETCHES) | numbers.map(str),
    lambda inner: st.builds("({} {} {})".format, inner, st.sampled_from(ARITHMETIC), inner),
    max_leaves=4,
)
comparisons = st.builds("{} {} {}".format, operands, st.sampled_from(COMPARISONS), operands)
conditions = st.recursive(
    comparisons | operands,
    lambda inner: (
        st.builds("!({})".format, inner)
        | st.builds("({})".format, st.lists(inner, min_size=2, max_size=3).map(" && ".join))
        | st.builds("({})".format, st.lists(inner, min_size=2, max_size=3).map(" || ".join))
    ),
    max_leaves=5,
)
words = st.sampled_from([number & (1 << 64) - 1 for number in INTERESTING]) | st.integers(0, (1 << 64) - 1)
addresses = st.integers(0, MEMORY_SIZE // 8 + 1).map(lambda number: MEMORY + 8 * number) | words
states = st.fixed_dictionaries(
    {
        name: addresses if name in ("rdi", "r8", "r9", "rbx", "r12") else words
        for name in GENERAL_REGISTERS
        if name != "rsp"
    }
)


@pytest.fixture(scope="module")
def playing(player_program: Path) -> Iterator[Player]:
    with Player(player_program) as player:
        player.poke(MEMORY, CONTENTS)
        player.poke(STACK_TOP, CONTENTS[:256])
        yield player


def read(address: int, size: int) -> bytes:
    """The memory of the player: two pages, and the stack above the return address."""
    if STACK_TOP + 8 <= address < STACK_TOP + 256:
        return CONTENTS[address - STACK_TOP :][:size]
    return CONTENTS[address - MEMORY :][:size] if MEMORY <= address < MEMORY + MEMORY_SIZE else b""


def is_accepted(text: str) -> bool:
    """Whether the grammar takes it: it refuses comparisons that are always true or always false."""
    try:
        parse(f"p:f x {ARGUMENTS} if {text}")
    except ProbeSyntaxError:
        return False
    return True


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(conditions, min_size=1, max_size=12), st.lists(states, min_size=1, max_size=6))
def test_a_condition_means_what_it_says(
    playing: Player, texts: list[str], registers: list[dict[str, int]]
) -> None:
    playing.edit()
    programs = []
    texts = [text for text in texts if is_accepted(text)]
    for index, text in enumerate(texts):
        program = event(index, f"p:f x {ARGUMENTS} if {text}", TEXT + SLOT * index, matched_index=100 + index)
        playing.counters.clear(program.index)
        playing.counters.clear(100 + index)
        programs.append(program)
        playing.probe(program.address, KEEPS_ALL, [Record(program, emit=False)], liveness=ALL_LIVE)
    playing.run()
    for values in registers:
        before = {**values, "rsp": STACK_TOP, "flags": 0x246}
        for program, text in zip(programs, texts, strict=True):
            matched = playing.counters.total(100 + program.index)
            after = playing.call(program.address, **before)
            state = State(program.address, before, read, lambda _: 0)
            found = playing.counters.total(100 + program.index) - matched
            assert found == holds(program, state), text
            assert {**after.registers, "rsp": STACK_TOP} == before
            assert after.red_zone_kept
            assert after.vectors_kept


def test_a_fault_makes_the_whole_condition_false(player: Player) -> None:
    texts = ["+0(%di) == 0", "!(+0(%di) == 0)", "%ax == 1 || +0(%di) == 0", "(%ax + +0(%di)) < 5 || %ax == 1"]
    for index, text in enumerate(texts):
        program = event(index, f"p:f x if {text}", TEXT + SLOT * index, matched_index=100 + index)
        player.probe(program.address, KEEPS_ALL, [Record(program, emit=False)])
    player.run()
    for index in range(len(texts)):
        player.call(TEXT + SLOT * index, rax=1, rdi=MEMORY + MEMORY_SIZE)
    assert player.counters.totals(104)[100:] == [0, 0, 1, 0]
    assert player.counters.totals(4) == [1, 1, 1, 1]


def test_a_condition_that_is_nested_too_deeply_is_refused(player: Player) -> None:
    nested = "%ax"
    for _ in range(8):
        nested = f"({nested} - %ax)"
    program = event(0, f"p:f x if {nested} == 1")
    with pytest.raises(ProbeError, match="nested too deeply"):
        player.probe(TEXT, KEEPS_ALL, [Record(program)])
