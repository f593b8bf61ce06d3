// Leaf functions that keep their variables below the stack pointer, in the red zone.
// long: 20000000
#include "program.h"

PROBED long leaf(long value)
{
    volatile long slots[14];
    for (int index = 0; index < 14; index++)
        slots[index] = value + index;
    long sum = 0;
    for (int index = 0; index < 14; index++)
        sum = sum * 3 + slots[index];
    return sum;
}

ASSEMBLY(leaf_assembly, "mov %rdi, -8(%rsp)\n lea 1(%rdi), %rax\n mov %rax, -128(%rsp)\n mov -8(%rsp), %rcx\n"
                        "mov -128(%rsp), %rax\n lea (%rax,%rcx,2), %rax\n ret");
long leaf_assembly(long value);

int main(int argc, char **argv)
{
    begin(argc, argv, 1000);
    unsigned long sum = 0;
    for (long turn = 0; turn < size; turn++)
        sum += (unsigned long)(leaf(turn) + leaf_assembly(turn));
    say("sum", (long)sum);
    count("leaf", size);
    count("leaf_assembly", size);
    return end();
}
