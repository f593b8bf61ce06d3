// Functions that are called with every misalignment of the stack, and with rsp far above its page's end.
// long: 90000000
#include "program.h"

PROBED long bystander(long value) { return value % 7; }

/* rdi = argument, rsi = how many bytes to move the stack down */
ASSEMBLY(call_misaligned, "push %rbp\n mov %rsp, %rbp\n sub %rsi, %rsp\n call bystander\n mov %rbp, %rsp\n pop %rbp\n ret");
long call_misaligned(long value, long bytes);

int main(int argc, char **argv)
{
    begin(argc, argv, 100);
    long sum = 0;
    for (long turn = 0; turn < size; turn++)
        sum += call_misaligned(turn, turn % 33);
    say("sum", sum);
    count("bystander", size);
    count("call_misaligned", size);
    return end();
}
