// Vector and mask registers hold values while a probed function, which does not know of them, runs.
// long: 3000000
// cpu: avx512f avx512bw
#include "program.h"

#define EACH ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n"
#define MASKS ".irp n,0,1,2,3,4,5,6,7\n"

PROBED long bystander(long value) { return value / 3 + 2; }

/* rdi = 32 vectors of 64 bytes and 8 masks to load, rsi = where to store them after the call, rdx = its argument */
ASSEMBLY(hold, "push %rbx\n push %rbp\n push %r12\n mov %rdi, %rbx\n mov %rsi, %rbp\n mov %rdx, %rdi\n"
               EACH "vmovdqu64 \\n*64(%rbx), %zmm\\n\n .endr\n" MASKS "kmovq 2048+\\n*8(%rbx), %k\\n\n .endr\n"
               "call bystander\n"
               EACH "vmovdqu64 %zmm\\n, \\n*64(%rbp)\n .endr\n" MASKS "kmovq %k\\n, 2048+\\n*8(%rbp)\n .endr\n"
               "vzeroupper\n pop %r12\n pop %rbp\n pop %rbx\n ret");
long hold(const uint64_t *load, uint64_t *store, long value);

int main(int argc, char **argv)
{
    static uint64_t before[264], after[264];
    begin(argc, argv, 100);
    uint64_t state = 88172645463325252;
    for (int index = 0; index < 264; index++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        before[index] = state;
    }
    long sum = 0, wrong = 0;
    for (long turn = 0; turn < size; turn++) {
        sum += hold(before, after, turn);
        for (int index = 0; index < 264; index++)
            wrong += before[index] != after[index];
    }
    say("sum", sum);
    say("wrong", wrong);
    count("bystander", size);
    count("hold", size);
    return end();
}
