// A function in assembly jumps over the first instruction of another one, as hand-written C libraries do.
// long: 80000000
// refusable: front
#include "program.h"

ASSEMBLY(front, "mov %rdi, %rax\n add $100, %rax\n imul $3, %rax, %rax\n ret");
ASSEMBLY(behind, "lea 7(%rdi), %rax\n jmp front+3");
ASSEMBLY(behind_if, "lea 9(%rdi), %rax\n test $1, %dil\n jnz front+3\n sub $1, %rax\n ret");
long front(long value), behind(long value), behind_if(long value);

int main(int argc, char **argv)
{
    begin(argc, argv, 1000);
    long sum = 0;
    for (long turn = 0; turn < size; turn++)
        sum += front(turn) - behind(turn) + behind_if(turn);
    say("sum", sum);
    count("front", size);
    count("behind", size);
    count("behind_if", size);
    return end();
}
