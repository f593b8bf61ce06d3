// Instructions of one, two and three bytes side by side: probes on all of them lie inside each other's regions.
// long: 60000000
#include "program.h"

ASSEMBLY(dense, "push %rbx\n push %rbp\n push %r12\n mov %edi, %eax\n mov %eax, %ebx\n inc %ebx\n add %ebx, %eax\n"
                "xor %ebp, %ebp\n mov %ebp, %r12d\n or %ebx, %ebp\n shl %eax\n sub %ebp, %eax\n add %r12d, %eax\n"
                "pop %r12\n pop %rbp\n pop %rbx\n ret");
ASSEMBLY(ones, "nop\n cld\n push %rcx\n nop\n pop %rdx\n cmc\n stc\n clc\n push %rdi\n nop\n pop %rax\n nop\n ret");
long dense(long value), ones(long value);

int main(int argc, char **argv)
{
    begin(argc, argv, 1000);
    long sum = 0;
    for (long turn = 0; turn < size; turn++)
        sum += dense(turn) + ones(turn);
    say("sum", sum);
    count("dense", size);
    count("ones", size);
    return end();
}
