"""Hand-made instructions of every kind, run in place and relocated: the same registers, memory and faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from differential.assembly import outside, slot
from differential.bench import LAYOUTS, NEAR, Bench, Outcome, cpu_flags
from differential.execution import EMPTY_PIPE, FAR, HIGH, LOW, SIGALRM, SIGFPE, SIGSEGV, Layout
from differential.relocation import ended_by_int3
from sidestep.arch.x86_64 import insn

CONDITIONS = ("o", "no", "b", "ae", "e", "ne", "be", "a", "s", "ns", "p", "np", "l", "ge", "le", "g")
LOOPS = ("loop", "loope", "loopne", "jrcxz", "addr32 loop", "addr32 loope", "addr32 loopne", "jecxz")


def layouts(table: dict[str, Layout]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return pytest.mark.parametrize("layout", table.values(), ids=table.keys())


@layouts(LAYOUTS)
def test_conditional_jumps_with_every_combination_of_flags(bench: Bench, layout: Layout) -> None:
    """jle, jg, jl, jge and the rest; forward, backward, inside the DCR; with 8 and with 32 bits."""
    shapes = ("j{} .+30", "j{} .-30", "j{} outside", "j{} 1f; nop; nop; nop; 1: nop", "2: nop; j{} 2b + 40")
    cases = []
    for relocated in bench.relocate(layout, [shape.format(name) for shape in shapes for name in CONDITIONS]):
        for combination in range(32):
            flags = 0x202
            for bit, flag in enumerate((0x001, 0x004, 0x040, 0x080, 0x800)):  # CF PF ZF SF OF
                flags |= flag if combination >> bit & 1 else 0
            cases.append(bench.case(layout, relocated, flags=flags))
    ways: dict[int, set[int]] = {}
    for relocated, _, result in bench.run(layout, cases):
        assert ended_by_int3(result)
        ways.setdefault(relocated.address, set()).add(result.ends[0].ip)
    assert sum(len(ends) == 2 for ends in ways.values()) == 4 * 16  # the fourth shape's ways meet again


@layouts(LAYOUTS)
def test_loops_count_and_leave_like_the_original(bench: Bench, layout: Layout) -> None:
    """rcx = 0, 1, 2, around 32 bits, and the largest; 67 prefixes; forward, backward, inside the DCR."""
    once = [f"{name} {place}" for name in LOOPS for place in (".+40", ".-40", "1f; 1:")]
    once += [f"{name} 1f; inc %rax; 1: inc %rdx" for name in LOOPS]
    turning = [f"xor %eax, %eax; 1: inc %eax; cmp $3, %eax; {name} 1b" for name in LOOPS if "cx" not in name]
    counts = (0, 1, 2, 5, 0xFFFF_FFFF, 0x1_0000_0000, 0x1_0000_0001, 0xFFFF_FFFF_0000_0000, 1 << 63)
    cases = []
    for snippets, values in ((once, counts), (turning, (1, 2, 3, 5, 0x1_0000))):
        for relocated in bench.relocate(layout, snippets):
            for rcx in values:
                cases += [bench.case(layout, relocated, rcx=rcx, flags=flags) for flags in (0x202, 0x242)]
    assert all(ended_by_int3(result) for _, _, result in bench.run(layout, cases))


@layouts(LAYOUTS)
def test_a_branch_to_the_first_byte_goes_to_the_original(bench: Bench, layout: Layout) -> None:
    snippets = ["1: loop 1b", "1: dec %rcx; jnz 1b", "1: lea -1(%rcx), %rcx; jrcxz 2f; jmp 1b; 2: nop"]
    for relocated, _, result in bench.check(layout, snippets, count=4, rcx=7):
        assert result.ends[1].ip == relocated.instructions[-1].next_ip + 1
        assert result.ends[1].register("rcx") == 0


@layouts(LAYOUTS)
def test_jumps(bench: Bench, layout: Layout) -> None:
    snippets = [
        "jmp .+50", "jmp .-50", "jmp outside", "bnd jmp outside", "jmp 1f; nop; 1: inc %rax",
        "nop; 2: jmp 1f; 1: inc %rdx; nop", "jmp 1f; 2: inc %rax; jmp 3f; 1: inc %rcx; jmp 2b; 3: nop",
    ]  # fmt: skip
    assert all(ended_by_int3(result) for _, _, result in bench.check(layout, snippets))


@layouts(LAYOUTS)
def test_returns(bench: Bench, layout: Layout) -> None:
    snippets = [
        "ret",
        "ret $0x18",
        "ret $0",
        "rep ret",
        "bnd ret",
        "pop %rbx; ret",
        "leave; ret",
        "ret $0x8000",
    ]
    cases = []
    for relocated in bench.relocate(layout, snippets):
        pokes = [(layout.stack + 8 * index, outside(layout) + 16 * index) for index in range(4)]
        cases.append(bench.case(layout, relocated, pokes, rsp=layout.stack, rbp=layout.stack + 8))
    assert all(ended_by_int3(result) for _, _, result in bench.run(layout, cases))


@layouts(LAYOUTS)
def test_calls_push_the_original_return_address(bench: Bench, layout: Layout) -> None:
    snippets = ["call outside", "call 1f; 1:", "nop; call outside", "bnd call outside", "rex.W call outside"]
    for relocated, _, result in bench.check(layout, snippets, count=6):
        assert ended_by_int3(result)
        assert relocated.relocator.points[-2].pushed == 8


def run_with_targets(bench: Bench, layout: Layout, snippets: Sequence[str]) -> list[Outcome]:
    """Addresses of int3 in registers, at `slot`, and at places above and below the stack pointer."""
    target = outside(layout)
    cases = []
    for relocated in bench.relocate(layout, snippets):
        for offset in (0, 8, 0x20, 0x78, 0x80, 0xFF8, -0x80, -0x88):
            pokes = [(layout.stack + offset, target), (slot(layout), target + 1)]
            cases.append(
                bench.case(
                    layout, relocated, pokes, rsp=layout.stack, rax=target + 2, r11=target + 3, rcx=1,
                    rbx=slot(layout), r13=slot(layout) - 8, r12=layout.stack + offset,
                )
            )  # fmt: skip
    return bench.run(layout, cases)


@layouts(LAYOUTS)
def test_calls_and_jumps_through_the_stack(bench: Bench, layout: Layout) -> None:
    """The operand's address is that of the stack pointer before the push."""
    operands = [
        "(%rsp)", "8(%rsp)", "0x20(%rsp)", "0x78(%rsp)", "0x80(%rsp)", "0xff8(%rsp)", "(%rsp,%rcx,8)",
        "0x18(%rsp,%rcx,8)", "-0x80(%rsp)", "-0x88(%rsp)", "%ss:8(%rsp)", "(%r12)", "-8(%r12,%rcx,8)",
    ]  # fmt: skip
    outcomes = run_with_targets(
        bench, layout, [f"{n} *{operand}" for n in ("call", "jmp") for operand in operands]
    )
    through = {relocated.address for relocated, _, result in outcomes if ended_by_int3(result)}
    assert len(through) == 2 * len(operands)


@layouts(LAYOUTS)
def test_calls_and_jumps_through_registers_and_memory(bench: Bench, layout: Layout) -> None:
    operands = ["%rax", "%r11", "(%rbx)", "8(%r13)", "(%r13,%rcx,8)", "0x100(,%rcx,8)", "%fs:0", "%rsp"]
    snippets = [f"{n} *{operand}" for n in ("call", "jmp") for operand in operands]
    snippets += ["notrack call *%rax", "notrack jmp *(%rbx)", "bnd call *(%rbx)", "notrack call *(%rbx)"]
    snippets.remove("call *%rsp")
    outcomes = run_with_targets(bench, layout, snippets)
    assert len({relocated.address for relocated, _, result in outcomes if ended_by_int3(result)}) >= 14


@layouts(NEAR)
def test_calls_and_jumps_through_rip_relative_memory(bench: Bench, layout: Layout) -> None:
    snippets = ["call *slot(%rip)", "jmp *slot(%rip)", "notrack call *slot(%rip)", "bnd call *slot(%rip)"]
    assert all(ended_by_int3(result) for _, _, result in run_with_targets(bench, layout, snippets))


def test_calls_and_jumps_through_32_bit_addresses(bench: Bench) -> None:
    snippets = [
        "addr32 call *8(%esp)",
        "addr32 call *0x78(%esp)",
        "addr32 call *(%ebx)",
        "addr32 jmp *8(%esp)",
    ]
    outcomes = run_with_targets(bench, LOW, snippets)
    assert len({relocated.address for relocated, _, result in outcomes if ended_by_int3(result)}) == 4


@layouts(LAYOUTS)
def test_the_stack_pointer_as_an_operand(bench: Bench, layout: Layout) -> None:
    snippets = [
        "push %rsp", "push (%rsp)", "push 8(%rsp)", "push $-5", "push $0x12345678", "pushw $3", "pushf",
        "pushfw", "pop %rsp", "pop (%rsp)", "pop 8(%rsp)", "pop %rbp", "enter $16, $0", "enter $32, $1",
        "sub $8, %rsp",
        "lea -8(%rsp,%rax), %rdx", "mov %rsp, %rbp", "xchg %rsp, %rbx", "and $-16, %rsp", "push %fs", "leave",
        "push %rbp; mov %rsp, %rbp; push %r15; push %r14", "push %rax; pop (%rsp)", "push %rsp; pop %rsp",
    ]  # fmt: skip
    bench.check_through(layout, snippets, rax=16, rbp=layout.stack + 64)


@layouts(LAYOUTS)
def test_popf(bench: Bench, layout: Layout) -> None:
    """All flags that a program may set, but those that would disturb the harness: TF, AC, ID."""
    cases = []
    for relocated in bench.relocate(layout, ["popf", "popfw", "pushf; popf; popf"]):
        for flags in (0x202, 0xAD7, 0x646, 0xCD7, 0x1_0202):
            cases.append(bench.case(layout, relocated, [(layout.stack, flags)], rsp=layout.stack))
    assert all(ended_by_int3(result) for _, _, result in bench.run(layout, cases))


RIP_RELATIVE = """
lea data(%rip), %rax | mov data(%rip), %rcx | mov %r9d, data(%rip) | movb $5, data(%rip)
movw $0x1234, data(%rip) | movl $0x12345678, data(%rip) | movq $-2, data(%rip) | cmpl $3, data(%rip)
cmpq $0x1000, data(%rip) | addb $1, data(%rip) | testb $1, data(%rip) | testq $0x10000, data(%rip)
imul $7, data(%rip), %rax | imul $0x12345, data(%rip), %r8 | imul data(%rip), %rdx
lock cmpxchg %rcx, data(%rip) | cmpxchg %bl, data(%rip) | lock cmpxchg8b data(%rip) | cmpxchg16b data(%rip)
lock cmpxchg16b data(%rip) | lock incl data(%rip) | lock xadd %rax, data(%rip) | xchg %rax, data(%rip)
shll $3, data(%rip) | shlq %cl, data(%rip) | shld $5, %rax, data(%rip) | btsq $33, data(%rip)
push data(%rip) | pop data(%rip) | setg data(%rip) | cmovle data(%rip), %rax | movzbl data(%rip), %eax
movslq data(%rip), %rax | movbe data(%rip), %rax | crc32q data(%rip), %rax | popcnt data(%rip), %rax
mulx data(%rip), %rax, %rbx | rorx $5, data(%rip), %rax | andn data(%rip), %rax, %rcx
sarx %rcx, data(%rip), %rax | adcx data(%rip), %rax | mulq data(%rip) | negq data(%rip) | fldt data(%rip)
fildl data(%rip) | fstpl data(%rip) | fldcw data(%rip) | stmxcsr data(%rip) | movups data(%rip), %xmm1
movaps data(%rip), %xmm2 | movdqu %xmm9, data(%rip) | pshufd $0x1b, data(%rip), %xmm3
pshufb data(%rip), %xmm3 | roundsd $1, data(%rip), %xmm4 | cvtsi2sdq data(%rip), %xmm5
pinsrq $1, data(%rip), %xmm1 | pextrb $3, %xmm1, data(%rip) | movq data(%rip), %mm1
vmovups data(%rip), %ymm1 | vmovdqa %ymm2, data(%rip) | vaddps data(%rip), %ymm1, %ymm15
vpshufd $0x4e, data(%rip), %ymm3 | vblendvpd %ymm1, data(%rip), %ymm2, %ymm3
vfmadd231sd data(%rip), %xmm1, %xmm2 | vpalignr $4, data(%rip), %ymm1, %ymm2
vbroadcastss data(%rip), %ymm1 | vinsertf128 $1, data(%rip), %ymm1, %ymm2 | prefetcht0 data(%rip)
vcmpltps data(%rip), %ymm2, %ymm3 | nopl data(%rip) | clflush data(%rip) | lock orq $0x100, data(%rip)
bt %rax, data(%rip) | data16 lea data(%rip), %rdi | cs mov data(%rip), %rax | mov data(%rip), %ds:(%rbx)
"""
RIP_RELATIVE_EVEX = """
vaddpd data(%rip), %zmm1, %zmm2 | vmovdqu64 data(%rip), %zmm17{%k1} | vmovdqu8 %zmm18, data(%rip){%k2}
vpternlogd $0x96, data(%rip), %zmm1, %zmm2 | vaddps data(%rip){1to16}, %zmm3, %zmm4{%k3}{z}
vpcmpub $2, data(%rip), %zmm5, %k4 | vmovss data(%rip), %xmm20 | vpermt2q data(%rip), %zmm7, %zmm8
vcvtpd2ps data(%rip){1to8}, %ymm9 | vrndscaleps $3, data(%rip), %zmm10 | kmovq data(%rip), %k5
vpblendmb data(%rip), %zmm1, %zmm2{%k1} | vextracti64x4 $1, %zmm2, data(%rip) | kmovw %k1, data(%rip)
vcompressps %zmm1, data(%rip){%k6}
"""


def words(table: str) -> list[str]:
    return [part.strip() for line in table.strip().splitlines() for part in line.split(" | ") if part.strip()]


@layouts(NEAR)
def test_rip_relative_operands(bench: Bench, layout: Layout) -> None:
    """With immediates of all sizes behind the displacement, locked, with VEX prefixes."""
    snippets = [word for word in words(RIP_RELATIVE) if "%ds:" not in word]
    bench.check_through(layout, snippets, count=4, rax=3)


@layouts(NEAR)
def test_rip_relative_operands_with_evex_prefixes(bench: Bench, layout: Layout) -> None:
    if not {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= cpu_flags():
        pytest.skip("this processor has no AVX-512")
    bench.check_through(layout, words(RIP_RELATIVE_EVEX), count=6)


def test_eip_relative_operands(bench: Bench) -> None:
    """A 67 prefix cuts the address to 32 bits."""
    snippets = ["lea data(%eip), %rax", "lea data(%eip), %eax", "mov data(%eip), %rcx", "movl $5, data(%eip)"]
    bench.check_through(LOW, snippets, count=4)


@layouts(LAYOUTS)
def test_faults_come_from_the_original_address(bench: Bench, layout: Layout) -> None:
    """Signal, code, fault address, trap and registers equal the original's, once the ip is taken back."""
    snippets = [
        "mov (%rax), %rcx", "mov %rcx, (%rax)", "incq (%rax)", "push (%rax)", "pop (%rax)", "call *(%rax)",
        "jmp *(%rax)", "nop; nop; lock cmpxchg %rcx, 8(%rax)", "xchg %rbx, (%rax)", "movups (%rax), %xmm0",
        "fldl (%rax)", "lodsb", "mov (%rax), %eax; mov (%rax), %ebx", "div %r9", "idiv %r9d", "divb %r9b",
        "movaps 1(%rbx), %xmm0", "call *8(%rax)", "addps 8(%rbx), %xmm1", "xlat",
        "mov (%rbx), %rax; mov (%r9), %rcx",
    ]  # fmt: skip
    cases = []
    for relocated in bench.relocate(layout, snippets):
        for address in (0, 0x10, 1 << 63, 0x7FFF_FFFF_F000, layout.memory - 8, layout.memory - 0x1008):
            pointers = {"rax": address, "rsi": address, "rbx": layout.data & ~63}
            cases.append(bench.case(layout, relocated, **pointers, r9=0, rdx=1))
    seen = {result.ends[0].signal for _, _, result in bench.run(layout, cases)}
    assert seen >= {SIGSEGV, SIGFPE}


@layouts(LAYOUTS)
def test_pushes_and_calls_with_a_bad_stack_or_target(bench: Bench, layout: Layout) -> None:
    snippets = ["call outside", "call *%rax", "push %rax", "pushf", "push $1", "call *(%rbx)"]
    for stack in (layout.memory, 0x1000, layout.memory + layout.memory_size + 0x2000):
        bench.check(layout, snippets, 1, rsp=stack, rax=outside(layout), rbx=slot(layout))
    bench.check(layout, ["call *%rax", "jmp *%rax", "call *(%rbx)"], 2, rax=0x10, rbx=layout.data - 0x400)
    bench.check(layout, ["call *%rax", "jmp *%rax"], 2, rax=1 << 63)


@layouts(LAYOUTS)
def test_repeated_string_instructions(bench: Bench, layout: Layout) -> None:
    """Whole, with a count of zero, backwards, and such that they fault midway."""
    names = ("movsb", "movsl", "movsq", "stosb", "stosq", "lodsb", "scasb", "cmpsb")
    snippets = [
        f"{prefix} {name}" for prefix in ("rep", "repne") for name in names if prefix + name != "repnescasb"
    ]
    end = layout.memory + layout.memory_size
    bench.check_through(layout, snippets, 2, rcx=0)
    bench.check_through(layout, snippets, 2, rcx=5, rdi=layout.data, rsi=layout.data + 256)
    backwards = ["std; rep movsb; cld", "std; stosq; lodsl; cld"]
    bench.check_through(layout, backwards, 3, rcx=9, rdi=layout.data, rsi=layout.data + 99)
    faulting = ["rep movsb", "rep movsl", "rep movsq", "rep stosb", "rep stosq", "rep lodsb"]
    for rcx, rdi, rsi in ((100, end - 40, end - 72), (1 << 40, layout.data, layout.data + 7)):
        outcomes = bench.check(layout, faulting, 4, rcx=rcx, rdi=rdi, rsi=rsi, flags=0x246)
        assert all(0 < result.ends[0].register("rcx") < rcx for _, _, result in outcomes)


@layouts(LAYOUTS)
def test_system_calls_leave_the_original_address_in_rcx(bench: Bench, layout: Layout) -> None:
    """getpid, getuid, gettid, a write to no descriptor, and a number that is none."""
    snippets = ["syscall", "syscall; mov %rcx, %rbx", "syscall; cmp $-4095, %rax; jae .+60", "nop; syscall"]
    for number in (39, 102, 186, 1, 0xFFFF):
        for relocated, _, result in bench.check_through(layout, snippets, 2, rax=number, rdi=0xFFFF_FFFF):
            behind = next(each.next_ip for each in relocated.instructions if insn.is_syscall(each))
            assert result.ends[1].register("rcx") == behind


def test_system_calls_that_a_signal_interrupts(bench: Bench) -> None:
    """read is started again from the syscall's address; pause and nanosleep end behind it with EINTR."""
    calls = {"read": 0, "pause": 34, "nanosleep": 35}
    (relocated,) = bench.relocate(HIGH, ["nop; syscall; nop"])
    second = {"rdi": EMPTY_PIPE, "rsi": HIGH.data, "rdx": 1}
    pokes = [(HIGH.data, 100), (HIGH.data + 8, 0)]
    cases = []
    for name, number in calls.items():
        pointers = {**second, "rdi": HIGH.data, "rsi": 0} if name == "nanosleep" else second
        cases.append(bench.case(HIGH, relocated, pokes, rax=number, **pointers))
        cases[-1][1].alarm = 200_000
    start = relocated.instructions[1].ip
    for (_, _, result), name in zip(bench.run(HIGH, cases), calls, strict=True):
        first = result.ends[0]
        assert first.signal == SIGALRM
        assert first.ip == (start if name == "read" else start + 2)
        assert first.register("rax") == (0 if name == "read" else (1 << 64) - 4)


@layouts(LAYOUTS)
def test_instructions_that_do_not_care_where_they_are(bench: Bench, layout: Layout) -> None:
    snippets = [
        "endbr64", "endbr64; push %rbp; mov %rsp, %rbp", "nop", "data16 nop", "nopw 0x100(%rax,%rax,1)",
        ".byte 0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 1, 0, 0", "rep nop", "pause",
        "lahf; sahf", "cld", "xlat", "cqto", "mfence",
        "movabs $0x1122334455667788, %rax", "xchg %ax, %ax", "fwait", "fsin", "fldpi; fstp %st", "emms",
        "vzeroupper", "vzeroall", "mov %fs:0x28, %rax", "lock addq $1, (%rbx)", "bswap %rcx", "rdsspq %rax",
    ]  # fmt: skip
    bench.check_through(layout, snippets, count=6, rbx=layout.data, rax=7)
    if layout is FAR:
        with pytest.raises(Exception, match="more than 2 GiB"):
            bench.relocate(layout, ["lea data(%rip), %rdi"])
