"""What the tables say about registers and flags, against the processor.

Each case runs the same code from two states that differ only where the tables say that nobody will notice.
"""

from __future__ import annotations

import random

from differential.assembly import assemble
from differential.bench import SEED, Bench
from differential.execution import (
    HIGH,
    REGISTERS,
    SIGTRAP,
    Case,
    End,
    Result,
    execute,
    random_registers,
    run_from,
)
from differential.harvest import Found, adapt, by_kind, streams, without_unfit
from differential.relocation import is_endless
from sidestep.arch.x86_64 import insn
from sidestep.arch.x86_64.effects import REGISTER_BITS, effects
from sidestep.arch.x86_64.liveness import live

_START = HIGH.original + 0x4000
AF = 1 << 19  # counts as replaced where it is undefined
# The bits of the flags register, in the order of the decoder's flag bits.
_FLAG_BITS = (0x800, 0x080, 0x040, 0x010, 0x001, 0x004)

SNIPPETS = """
shl %cl, %rax | shr %cl, %edx | sar %cl, %r8 | rol %cl, %rdx | ror %cl, %dl | rcl %cl, %rax
rcr %cl, %ax | shld %cl, %rax, %rdx | shrd %cl, %eax, %edx | shl $0, %rax | shl $1, %rax | shl $5, %eax
rol $3, %rbx | rep cmpsb | repne scasb | repe scasl | repne cmpsq | cmpsb | scasq | rep stosb | rep movsb
lodsb | rep lodsb | xor %eax, %eax | xor %al, %al | sub %rcx, %rcx | sbb %eax, %eax | xor %rax, %rcx
mov %al, %cl | mov %ah, %dl | mov %ax, %dx | mov %eax, %edx | mov $1, %al | movzbl %al, %ecx
movsbw %al, %cx | lea (%rax,%rcx), %edx | cmove %eax, %ecx | cmovne %rax, %rcx | cmovb %ax, %cx
setc %al | adc $1, %rax | sbb %rcx, %rdx | inc %rax | dec %ecx | neg %rax | not %rax | bsf %rax, %rcx
bsr %eax, %ecx | tzcnt %rax, %rcx | lzcnt %eax, %ecx | popcnt %rax, %rcx | bt $3, %rax | bts %rcx, %rax
imul %rax, %rcx | imul $3, %eax, %ecx | mul %rcx | imul %cl | cltd | cqto | cltq | cwtl | cbtw
xchg %rax, %rcx | xchg %al, %cl | xadd %rax, %rcx | xadd %al, %cl | bswap %eax | cmpxchg %rcx, %rdx
cmpxchg %cl, %dl | lahf | sahf | clc | stc | cmc | cld | andn %rax, %rcx, %rdx | mulx %rax, %rcx, %rsi
shlx %rax, %rcx, %rdx | bextr %rax, %rcx, %rdx | pdep %rax, %rcx, %rdx | adcx %rax, %rcx
adox %rax, %rcx | crc32b %al, %ecx | push %rax | pop %rcx | pushf | leave | enter $8, $0 | xlat
movmskps %xmm1, %eax | vpmovmskb %ymm1, %ecx | pcmpestri $0, %xmm1, %xmm2 | pcmpistri $12, %xmm1, %xmm2
ptest %xmm1, %xmm2 | ucomisd %xmm1, %xmm2 | movd %xmm1, %eax | pextrw $1, %xmm1, %eax
cvttsd2si %xmm1, %rax | movq %rax, %xmm1 | fcomi %st(1), %st | fcmovb %st(1), %st | cmp %rax, %rcx
test %eax, %eax | or $0, %eax | and $-1, %rax | nop | jmp .+20 | je .+20 | jl .+20 | ja .+20 | jrcxz .+20
loop .+20 | loope .+20 | call .+20 | call *%rax | ret | rdsspq %rax | lar %ax, %ecx | lsl %ax, %ecx
lock incl slot(%rip) | cmpxchg8b slot(%rip) | cmpxchg16b slot(%rip) | movbe slot(%rip), %eax
kmovq %k1, %rax | kortestq %k1, %k2
"""


def other_state(registers: dict[str, int], free: int, source: random.Random) -> dict[str, int]:
    """`registers` with new values for those in `free`, a set of bits as in effects.py."""
    changed = dict(registers)
    for name, bit in REGISTER_BITS.items():
        if free & bit:
            changed[name] = source.getrandbits(64)
    for index, flag in enumerate(_FLAG_BITS):
        if free >> 16 + index & 1 and source.random() < 0.6:
            changed["flags"] ^= flag
    return changed


def bits_that_differ(first: End, second: End) -> int:
    found = 0
    for name, bit in REGISTER_BITS.items():
        if first.register(name) != second.register(name):
            found |= bit
    flags = first.register("flags") ^ second.register("flags")
    for index, flag in enumerate(_FLAG_BITS):
        if flags & flag:
            found |= 1 << 16 + index
    return found


def what_changed(end: End, start: dict[str, int]) -> int:
    return bits_that_differ(end, End(0, 0, 0, 0, 0, 0, tuple(start[name] for name in REGISTERS)))


def test_an_instruction_reads_and_replaces_what_the_tables_say(bench: Bench) -> None:
    source = random.Random(SEED)
    snippets = [snippet.strip() for line in SNIPPETS.strip().splitlines() for snippet in line.split("|")]
    codes = assemble(bench.folder, HIGH, snippets)
    for found in by_kind(streams(source), 2, source):
        if without_unfit([found]):
            codes.append((_START, adapt([found], _START, HIGH, source)))
    cases, tables = [], []
    for address, code in codes:
        (instruction,) = insn.decode(code, address)
        table = effects(instruction)
        for _ in range(6):
            registers = random_registers(source, HIGH)
            other = other_state(registers, ~table.reads & 0x3F_FFFF & ~REGISTER_BITS["rsp"], source)
            cases.append(Case([(address, code)], (run_from(address, registers), run_from(address, other)), 1))
            tables.append((instruction, table, registers, other))
    wrong = []
    for (instruction, table, registers, other), result in zip(
        tables, execute(bench.program, bench.folder, HIGH, cases, SEED), strict=True
    ):
        problems = effects_differ(table.writes, table.replaces & ~AF, registers, other, result)
        if problems:
            wrong.append("\n".join([insn.text(instruction), *problems, str((registers, other, result))]))
    assert not wrong, f"seed {SEED}, {len(wrong)} of {len(cases)} are wrong, the first:\n{wrong[0]}"
    assert len(cases) > 3000


def effects_differ(
    writes: int, replaces: int, registers: dict[str, int], other: dict[str, int], result: Result
) -> list[str]:
    first, second = result.ends
    problems = []
    if (first.signal, first.ip, first.error) != (second.signal, second.ip, second.error):
        problems.append("they end differently: something else is read")
    if result.memory or result.vectors:
        problems.append("memory or vectors differ: something else is read")
    if first.signal != SIGTRAP or problems:
        return problems
    for end, start in ((first, registers), (second, other)):
        changed = what_changed(end, start) & ~writes
        if changed:
            problems.append(f"writes more: {names(changed)}")
    free = bits_that_differ(End(*first[:6], tuple(registers[name] for name in REGISTERS)),
                            End(*first[:6], tuple(other[name] for name in REGISTERS)))  # fmt: skip
    differ = bits_that_differ(first, second)
    if differ & replaces:
        problems.append(f"does not replace {names(differ & replaces)}")
    if differ & ~(writes | free):
        problems.append(f"more is read: {names(differ & ~(writes | free))} differ")
    return problems


def names(bits: int) -> str:
    found = [name for name, bit in REGISTER_BITS.items() if bits & bit]
    flags = ("of", "sf", "zf", "af", "cf", "pf")
    return " ".join(found + [flag for index, flag in enumerate(flags) if bits >> 16 + index & 1])


def liveness_cases(source: random.Random) -> list[tuple[list[Found], bytes]]:
    found = []
    for stream in streams(source):
        for _ in range(3):
            index = source.randrange(len(stream) - 8)
            parts = without_unfit(stream[index : index + 40])
            if len(parts) > 3:
                found.append((parts, adapt(parts, _START, HIGH, source)))
    return found


def test_what_is_dead_makes_no_difference(bench: Bench) -> None:
    """Dead registers and flags are scrambled before a piece of real code: it must end in the same state."""
    source = random.Random(SEED)
    cases, tables = [], []
    for _, code in liveness_cases(source):
        instructions = insn.decode(code, _START)
        found = live(instructions, _START)
        free = sum(REGISTER_BITS[name] for name in found.dead) | (0 if found.flags else 0x3F << 16)
        if not free:
            continue
        for _ in range(3):
            registers = random_registers(source, HIGH)
            other = other_state(registers, free, source)
            cases.append(Case([(_START, code)], (run_from(_START, registers), run_from(_START, other)), 1))
            tables.append((instructions, free))
    wrong = []
    for (instructions, free), result in zip(
        tables, execute(bench.program, bench.folder, HIGH, cases, SEED), strict=True
    ):
        problem = state_differs(free, result)
        if problem:
            code = "\n".join(insn.text(instruction) for instruction in instructions)
            wrong.append(f"{names(free)} taken for dead: {problem}\n{code}\n{result.ends}")
    assert not wrong, f"seed {SEED}, {len(wrong)} of {len(cases)} are wrong, the first:\n{wrong[0]}"
    assert len(cases) > 1000


def state_differs(free: int, result: Result) -> str:
    """Behind a fault, what is dead may still hold what was put there."""
    first, second = result.ends
    if is_endless(result):
        return ""
    if first[:6] != second[:6] or result.memory or result.vectors:
        return "they end differently"
    differ = bits_that_differ(first, second) & ~AF
    if first.signal != SIGTRAP:
        differ &= ~free
    return names(differ)
