// Functions that take their arguments off the stack when they return.
// long: 100000000
#include "program.h"

ASSEMBLY(take_two, "mov 8(%rsp), %rax\n sub 16(%rsp), %rax\n ret $16");
ASSEMBLY(take_none, "lea 1(%rdi), %rax\n ret $0");
ASSEMBLY(at_once, "ret $8");
ASSEMBLY(call_them, "push %rbp\n mov %rsp, %rbp\n push %rdi\n push %rsi\n call take_two\n mov %rax, %rdi\n call take_none\n"
                    "push %rdi\n call at_once\n cmp %rsp, %rbp\n sete %cl\n movzbl %cl, %ecx\n add %rcx, %rax\n pop %rbp\n ret");
long call_them(long first, long second);

int main(int argc, char **argv)
{
    begin(argc, argv, 1000);
    long sum = 0;
    for (long turn = 0; turn < size; turn++)
        sum += call_them(turn, 5);
    say("sum", sum);
    count("take_two", size);
    count("take_none", size);
    count("at_once", size);
    count("call_them", size);
    return end();
}
