// Constants and a jump table stand between instructions, in the text and inside a function's bounds.
// long: 100000000
#include "program.h"

ASSEMBLY(with_constant, "mov 1f(%rip), %rax\n add %rdi, %rax\n jmp 2f\n 1: .quad 0x0f0b0f0bcccccccc\n 2: ret");
ASSEMBLY(with_table, "and $3, %edi\n lea 1f(%rip), %rdx\n movslq (%rdx,%rdi,4), %rax\n add %rdx, %rax\n jmp *%rax\n"
                     "1: .long 2f - 1b, 3f - 1b, 4f - 1b, 5f - 1b\n 2: mov $10, %eax\n ret\n 3: mov $20, %eax\n ret\n"
                     "4: mov $30, %eax\n ret\n 5: mov $40, %eax\n ret");
long with_constant(long value), with_table(long value);

int main(int argc, char **argv)
{
    begin(argc, argv, 1000);
    long sum = 0;
    for (long turn = 0; turn < size; turn++)
        sum += (with_constant(turn) & 0xffffffff) + with_table(turn);
    say("sum", sum);
    count("with_constant", size);
    count("with_table", size);
    return end();
}
