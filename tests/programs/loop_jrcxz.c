// loop, loope, loopne and jrcxz, with 64-bit and 32-bit counters, with rcx of 0 (where jrcxz tests it), 1, 2, 3.
// long: 10000000
#include "program.h"

ASSEMBLY(by_loop, "mov %rdi, %rcx\n xor %eax, %eax\n 1: add $3, %rax\n loop 1b\n ret");
ASSEMBLY(by_loope, "mov %rdi, %rcx\n xor %eax, %eax\n 1: inc %rax\n cmp %rax, %rax\n loope 1b\n lea (%rax,%rcx,8), %rax\n ret");
ASSEMBLY(by_loopne, "mov %rdi, %rcx\n xor %eax, %eax\n 1: inc %rax\n cmp $2, %rax\n loopne 1b\n lea (%rax,%rcx,8), %rax\n ret");
ASSEMBLY(by_loop_32, "mov $-1, %rcx\n mov %edi, %ecx\n bts $40, %rcx\n xor %eax, %eax\n 1: inc %rax\n addr32 loop 1b\n lea (%rax,%rcx), %rax\n ret");
ASSEMBLY(by_jrcxz, "mov %rdi, %rcx\n jrcxz 1f\n lea 10(%rdi), %rax\n ret\n 1: mov $5, %eax\n ret");
ASSEMBLY(by_jecxz, "mov %rdi, %rcx\n bts $33, %rcx\n jecxz 1f\n lea 20(%rdi), %rax\n ret\n 1: mov $6, %eax\n ret");
/* The instruction itself is the entry. */
ASSEMBLY(at_entry, "jrcxz 1f\n lea (%rcx,%rdx), %rax\n ret\n 1: mov $7, %eax\n ret");
long by_loop(long turns), by_loope(long turns), by_loopne(long turns), by_loop_32(long turns), by_jrcxz(long turns);
long by_jecxz(long turns), at_entry(long a, long b, long c, long d);

int main(int argc, char **argv)
{
    begin(argc, argv, 100);
    long sum = 0;
    for (long turn = 0; turn < size; turn++) {
        long turns = turn % 4;
        sum = (sum + by_loop(turns + 1) + by_loope(turns + 1) * 3 + by_loopne(turns + 1) * 5) & 0xffffffffffff;
        sum = (sum + by_loop_32(turns + 1) * 7 + by_jrcxz(turns) * 11 + by_jecxz(turns) * 13) & 0xffffffffffff;
        sum += at_entry(0, 0, turn, turns);
    }
    say("sum", sum);
    count("by_loop", size);
    count("by_loope", size);
    count("by_loopne", size);
    count("by_loop_32", size);
    count("by_jrcxz", size);
    count("by_jecxz", size);
    count("at_entry", size);
    return end();
}
