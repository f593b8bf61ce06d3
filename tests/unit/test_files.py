"""Verdicts about compiled files: what only a real ELF file has, and the census of one."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.samples import Samples
from sidestep import errors
from sidestep.errors import Refusal
from sidestep.safety.census import take_census
from sidestep.safety.context import Circumstances, ModuleContext
from sidestep.safety.region import Placement
from sidestep.safety.restartable import restartable_sequences
from sidestep.safety.verdict import verdict
from sidestep.symbols.elf import ElfFile
from sidestep.symbols.functions import FunctionTable

RESTARTABLE = """
        .section __rseq_cs, "aw", @progbits
        .balign 32
descriptor:
        .long   0, 0
        .quad   1f, 2f - 1f, 4f
        .text
        .globl  increment
        .type   increment, @function
increment: .cfi_startproc
        lea     descriptor(%rip), %rax
        mov     %rax, (%rdi)
1:      cmp     %edx, 4(%rdi)
        jnz     4f
        addq    $1, (%rsi)
2:      xor     %eax, %eax
        nopl    (%rax)
        ret
        .byte   0x0f, 0xb9, 0x3d
        .long   0x53053053
4:      mov     $1, %eax
        ret
        .cfi_endproc
        .size increment, . - increment
"""
SWITCH = """
#include <stdio.h>
__attribute__((noinline)) int pick(int a, int b)
{
    switch (a) {
    case 0: b++; case 1: b *= 3; case 2: b ^= 5; break; case 3: return b - 1; case 4: b += a;
    case 5: b--; case 6: b <<= 1; case 7: return b; case 9: b = ~b; break; default: return a;
    }
    return b + a;
}
__attribute__((cold, noinline)) int rare(int a) { return puts("rare") + a; }
int main(int argc, char **argv) { return pick(argc, argv[0][0]) + (argc > 10 ? rare(argc) : 0); }
"""


def context_of(path: Path, probes: int = 1) -> ModuleContext:
    elf = ElfFile.open(str(path))
    return ModuleContext(elf, FunctionTable(elf), name=path.name, batch=Circumstances(probes=probes))


@pytest.mark.parametrize(
    "flags", [("-shared",), ("-shared", "-Wl,-z,pack-relative-relocs"), ("-no-pie", "-nostdlib")]
)
def test_restartable_sequences_do_not_move(flags: tuple[str, ...], samples: Samples) -> None:
    context = context_of(samples(RESTARTABLE, *flags, suffix=".s"))
    (function,) = context.functions.named("increment")  # type: ignore[attr-defined]
    sequence, signature = restartable_sequences(context.file)
    assert (sequence.start, signature.end) == (function.start + 10, function.end - 5)
    code = context.code_of(function)
    code.decode_all()
    names = {}
    for instruction in code.instructions:
        answer = verdict(context, instruction.ip)
        names[instruction.ip - function.start] = (
            answer.tactic if isinstance(answer, Placement) else answer.reason.name
        )
    assert names[0] == "jump"
    assert [names[offset] for offset in (10, 13, 15)] == ["blacklisted"] * 3
    assert names[19] == "region"


@pytest.mark.parametrize("flags", [("-O0",), ("-O2",), ("-O2", "-no-pie", "-fno-pie"), ("-O2", "-static")])
def test_the_census_counts_what_single_verdicts_say(flags: tuple[str, ...], samples: Samples) -> None:
    path = samples(SWITCH, "-w", *flags)
    many = context_of(path, probes=1000)
    functions = [*many.functions.named("pick"), *many.functions.named("main")]  # type: ignore[attr-defined]
    done: list[int] = []
    census = take_census(many, functions, done.append)
    assert (done, census.functions, census.undecodable) == ([1, 2], 2, 0)
    assert census.placed > 0.8 * census.instructions
    assert census.instructions == census.placed + census.refusals.total()
    tactics: dict[str, int] = {}
    one = context_of(path)
    for function in functions:
        code = one.code_of(function)
        code.decode_all()
        for address in code.boundaries[:-1]:
            answer = verdict(one, address)
            if isinstance(answer, Placement):
                tactics[answer.tactic] = tactics.get(answer.tactic, 0) + 1
    assert tactics == census.tactics


def test_the_census_counts_undecodable_code(samples: Samples) -> None:
    source = '__asm__(".globl f\\n.type f, @function\\nf: nop\\n .byte 0x06\\n ret\\n.size f, . - f");'
    context = context_of(samples(source, "-shared", "-nostdlib"))
    census = take_census(context, context.functions.named("f"))  # type: ignore[attr-defined]
    assert (census.undecodable, census.instructions) == (1, 1)
    assert census.examples["not-decodable"]


def test_an_executable_at_a_fixed_address_holds_pointers_in_its_data(samples: Samples) -> None:
    source = """
        long entry(long);
        __asm__(".globl entry\\n.type entry, @function\\nentry: mov %rdi, %rax\\n"
                "inner: inc %rax\\n dec %rdi\\n ret\\n"
                ".size entry, . - entry\\n.data\\n.long 0\\n.quad inner\\n.text");
        int main(void) { return (int)entry(1); }
    """
    for flags, expected in (
        (("-no-pie", "-fno-pie"), "may be the address"),
        (("-pie", "-fpie"), "a pointer in the data leads to"),
    ):
        for probes in (1, 1000):
            context = context_of(samples(source, *flags), probes)
            (function,) = context.functions.named("entry")  # type: ignore[attr-defined]
            answer = verdict(context, function.start)
            assert isinstance(answer, Refusal)
            assert answer.reason is errors.JUMP_INTO_REGION
            assert expected in answer.detail


def test_a_stripped_file_has_the_same_answers(samples: Samples) -> None:
    path = samples(SWITCH, "-w", "-O2")
    whole = context_of(path)
    stripped = context_of(samples.stripped(path))
    (function,) = whole.functions.named("pick")  # type: ignore[attr-defined]
    code = whole.code_of(function)
    code.decode_all()
    for address in code.boundaries[:-1]:
        one, other = verdict(whole, address), verdict(stripped, address)
        if isinstance(one, Placement):
            assert isinstance(other, Placement)
            assert (one.tactic, one.dcr) == (other.tactic, other.dcr)
        else:
            assert one == other
