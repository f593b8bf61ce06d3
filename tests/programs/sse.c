// The lower vector registers, which every processor has, hold arguments and temporaries across probed calls.
// long: 10000000
#include "program.h"

#define EACH ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"

PROBED double mix(double a, double b, float c, long d) { return a * b + (double)c - (double)d; }
PROBED long bystander(long value) { return value / 5 - 3; }

ASSEMBLY(hold, "push %rbx\n push %rbp\n push %r12\n mov %rdi, %rbx\n mov %rsi, %rbp\n mov %rdx, %rdi\n"
               EACH "movdqu \\n*16(%rbx), %xmm\\n\n .endr\n call bystander\n"
               EACH "movdqu %xmm\\n, \\n*16(%rbp)\n .endr\n pop %r12\n pop %rbp\n pop %rbx\n ret");
long hold(const uint64_t *load, uint64_t *store, long value);

int main(int argc, char **argv)
{
    static uint64_t before[32], after[32];
    begin(argc, argv, 100);
    for (int index = 0; index < 32; index++)
        before[index] = (uint64_t)(index + 1) * 0x9e3779b97f4a7c15;
    double total = 0;
    long sum = 0, wrong = 0;
    for (long turn = 0; turn < size; turn++) {
        total += mix(1.5, (double)turn, 0.25f, turn);
        sum += hold(before, after, turn);
        for (int index = 0; index < 32; index++)
            wrong += before[index] != after[index];
    }
    say("total", (long)total);
    say("sum", sum);
    say("wrong", wrong);
    count("mix", size);
    count("bystander", size);
    count("hold", size);
    return end();
}
