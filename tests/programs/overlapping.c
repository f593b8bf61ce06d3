// The jumps of probes on the first two instructions would overlap; the second alone reaches further than both.
// long: 100000000
#include "program.h"

ASSEMBLY(work, "mov %rdi, %rax\n shl $7, %rax\n xor %rdi, %rax\n ret\n nop\n nop\n nop\n nop");
long work(long value);

int main(int argc, char **argv)
{
    begin(argc, argv, 1000);
    long wrong = 0;
    for (long turn = 0; turn < size; turn++)
        wrong += work(turn) != (turn ^ turn << 7);
    say("wrong", wrong);
    count("work", size);
    return end();
}
