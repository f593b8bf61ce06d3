"""No step that a program really takes leads into a region that was found safe.

Small programs with everything that makes control go somewhere unexpected are run in single steps; for each
step that is no falling through, all regions around the place where it arrives are asked for.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from pathlib import Path

import pytest

from harness.samples import Samples
from sidestep.address import Range
from sidestep.safety.context import Circumstances, ModuleContext
from sidestep.safety.region import Placement
from sidestep.safety.verdict import verdict
from sidestep.symbols.elf import ElfFile
from sidestep.symbols.functions import FunctionTable

pytestmark = pytest.mark.process


BEGIN = '#define RECORD __asm__ volatile("int3")\n'
# main() runs between two int3: only that is stepped.
PROGRAMS = {
    "switch": BEGIN
    + """
        __attribute__((noipa)) int pick(int a, int b)
        {
            switch (a) {
            case 0: b++; case 1: b *= 3; case 2: b ^= 5; break;
            case 3: return b - 1; case 4: b += a; case 5: b--; case 6: b <<= 1; case 7: return b;
            case 9: b = ~b; break; case 10: b += 100; case 11: b ^= a; break; default: return a;
            }
            return b + a;
        } int main(void) { int s = 0; RECORD; for (int i = -1; i < 14; i++) s += pick(i, s); RECORD; return
        s == 12345; }
      """,
    "pointers": BEGIN
    + """
        __attribute__((noipa)) int interpret(const unsigned char *code, int value)
        {
            static const void *const labels[] = {&&stop, &&up, &&twice, &&invert, &&again};
            goto *labels[*code++];
        again: value ^= 1;
        up: value++;
        twice: value += value; goto *labels[*code++];
        invert: value = -value; goto *labels[*code++];
        stop: return value;
        }
        int main(void)
        {
            int s = 1;
            RECORD;
            for (int i = 0; i < 3; i++) s += interpret((const unsigned char[]){1, 4, 2, 3, 1, 0}, i);
            RECORD;
            return s == 12345;
        }
    """,
    "offsets": BEGIN
    + """
        __attribute__((noipa)) int interpret(const unsigned char *code, int value)
        {
            static const int offsets[] = {&&stop - &&base, &&up - &&base, &&twice - &&base, &&again -
            &&base};
        base: goto *(&&base + offsets[*code++]);
        again: value ^= 1;
        up: value++;
        twice: value += value; goto *(&&base + offsets[*code++]);
        stop: return value;
        }
        int main(void)
        {
            int s = 1;
            RECORD;
            for (int i = 0; i < 3; i++) s += interpret((const unsigned char[]){1, 3, 2, 1, 0}, i);
            RECORD;
            return s == 12345;
        }
      """,
    "unrolled": BEGIN
    + """
        long duff(long steps);
        __asm__(
            ".text\\n.type duff, @function\\nduff: .cfi_startproc\\n lea 1f(%rip), %rdx\\n neg %rdi\\n"
            " lea (%rdi,%rdi,2), %rdi\\n lea 2f(%rip), %rdx\\n add %rdx, %rdi\\n xor %eax, %eax\\n"
            " jmp *%rdi\\n"
            "1: inc %rax\\n inc %rcx\\n dec %rdx\\n inc %rax\\n inc %rcx\\n inc %rdx\\n2: ret\\n"
            ".cfi_endproc\\n.size duff, . - duff\\n");
        int main(void)
        {
            long s = 0;
            RECORD;
            for (int i = 0; i < 4; i++) s += duff(i);
            RECORD;
            return s == 12345;
        }
    """,
    "jumps": BEGIN
    + """
        #include <setjmp.h>
        static jmp_buf place;
        __attribute__((noipa)) void back(int n) { if (n) longjmp(place, n); }
        __attribute__((noipa)) int caller(int n)
        {
            int k = setjmp(place);
            if (k > 2) return k;
            back(k + n);
            return -1;
        }
        __attribute__((noipa)) int tail(int (*f)(int), int n) { return f(n + 1); }
        int main(void) { int s; RECORD; s = caller(1) + tail(caller, 0); RECORD; return s == 12345; }
    """,
    "neighbours": BEGIN
    + """
        long front(long), behind(long);
        __asm__(
            ".text\\n.type front, @function\\nfront: .cfi_startproc\\n mov %rdi, %rax\\n add $100, %rax\\n"
            "3: sub $1, %rdi\\n jns 3b\\n ret\\n.cfi_endproc\\n.size front, . - front\\n"
            ".type behind, @function\\nbehind: .cfi_startproc\\n lea 7(%rdi), %rax\\n test $1, %dil\\n"
            " jnz front + 3\\n jmp front + 7\\n.cfi_endproc\\n.size behind, . - behind\\n");
        int main(void)
        {
            long s = 0;
            RECORD;
            for (int i = 0; i < 4; i++) s += front(i) + behind(i);
            RECORD;
            return s == 1;
        }
    """,
    "text": BEGIN
    + """
        #include <stdio.h>
        int main(void)
        {
            char text[200];
            RECORD;
            int n = snprintf(text, sizeof text, "%5.2f %-8s|%08lx %*d %c", 3.14159, "abc", 255L, 9, 3, 'x');
            n += snprintf(text, sizeof text, "%e %p %5.3s %zu %%", 1e10, (void *)text, "longer", sizeof text);
            n += snprintf(text, sizeof text, "%2$s %1$d", 5, "second");
            RECORD;
            return n == 12345;
        }
    """,
}  # fmt: skip
THROWING = """
    #include <stdexcept>
    #include <string>
    struct Guard { int &n; ~Guard() { n++; } };
    __attribute__((noipa)) int deep(int n, int &count)
    {
        Guard guard{count};
        if (n == 0) throw std::runtime_error("bottom");
        try { return deep(n - 1, count) + 1; } catch (const std::logic_error &) { return -1; }
    }
    int main()
    {
        int count = 0;
        __asm__ volatile("int3");
        for (int i = 0; i < 2; i++)
            try { deep(i, count); } catch (const std::exception &error) { count += error.what()[0]; }
        __asm__ volatile("int3");
        return count == 12345;
    }
"""
BUILDS = {
    "O0": ("-O0",),
    "O2": ("-O2",),
    "no-pie": ("-O2", "-no-pie", "-fno-pie"),
    "static": ("-O2", "-static"),
    "cet": ("-O2", "-fcf-protection=full"),
}
PTRACE_TRACEME, PTRACE_PEEKUSER, PTRACE_CONT, PTRACE_SINGLESTEP = 0, 3, 7, 9
RIP = 16 * 8  # offset in struct user
MOST_STEPS = 60_000


def steps_of(program: Path) -> tuple[set[tuple[int, int]], int]:
    """The distinct (from, to) of the steps between the two int3 of a program, at the file's addresses; and
    the number of steps."""
    libc = ctypes.CDLL(None, use_errno=True)
    ptrace = libc.ptrace
    ptrace.restype, ptrace.argtypes = (
        ctypes.c_long,
        [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p],
    )
    process = subprocess.Popen(
        [program],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: ptrace(PTRACE_TRACEME, 0, None, None),  # noqa: PLW1509
    )
    pid = process.pid
    try:
        assert os.WIFSTOPPED(os.waitpid(pid, 0)[1])
        assert ptrace(PTRACE_CONT, pid, None, None) == 0
        assert os.WSTOPSIG(os.waitpid(pid, 0)[1]) == signal.SIGTRAP  # the first int3
        base = 0
        if ElfFile.open(str(program)).is_pic:
            maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
            base = next(int(line.partition("-")[0], 16) for line in maps if line.endswith(str(program)))
        steps: set[tuple[int, int]] = set()
        last = ptrace(PTRACE_PEEKUSER, pid, RIP, None)
        for number in range(MOST_STEPS):
            assert ptrace(PTRACE_SINGLESTEP, pid, None, None) == 0
            _, status = os.waitpid(pid, 0)
            ip = ptrace(PTRACE_PEEKUSER, pid, RIP, None)
            assert os.WIFSTOPPED(status)
            if os.WSTOPSIG(status) == signal.SIGTRAP and ip == last + 1:
                with open(f"/proc/{pid}/mem", "rb") as memory:
                    memory.seek(last)
                    if memory.read(1) == b"\xcc":  # the second int3
                        return steps, number
            steps.add((last - base, ip - base))
            last = ip
        return steps, MOST_STEPS
    finally:
        process.kill()
        process.wait()


def check(program: Path, steps: set[tuple[int, int]]) -> int:
    """How many steps were looked at."""
    elf = ElfFile.open(str(program))
    context = ModuleContext(elf, FunctionTable(elf), name=program.name, batch=Circumstances(probes=1000))
    checked = 0
    for origin, to in sorted(steps):
        function = context.function_at(to)
        if function is None:
            continue
        code = context.code_of(function)
        index = code.index_containing(to)
        if index is None or code.boundaries[index] != to:
            continue
        before = [each for each in code.instructions[max(index - 12, 0) : index] if each.ip > to - 40]
        if before and before[-1].ip == origin:
            continue  # It fell through, or came from the instruction before anyway.
        checked += 1
        for instruction in before:
            placement = verdict(context, instruction.ip)
            if isinstance(placement, Placement) and placement.start < to < placement.clean_end:
                moved = Range(placement.start, placement.instructions[-1].next_ip)
                assert origin in moved, f"{origin:#x} leads to {to:#x}, into the region {placement.dcr}"
    return checked


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_executed_never_leads_into_a_region(name: str, build: str, samples: Samples) -> None:
    program = samples(PROGRAMS[name], "-Wno-pedantic", "-w", *BUILDS[build])
    steps, number = steps_of(program)
    assert number > 30
    assert check(program, steps) >= 3


@pytest.mark.parametrize("build", ["O0", "O2", "static"])
def test_exceptions_never_lead_into_a_region(build: str, samples: Samples) -> None:
    program = samples(THROWING, "-w", *BUILDS[build], suffix=".cc")
    steps, _ = steps_of(program)
    assert check(program, steps) >= 3
