// A function of which handlers leave out instructions: at +3 an addition, at +9 a comparison.
// long: 20000000
#include "program.h"

ASSEMBLY(stepped, "mov %rdi, %rax\n"    // +0
                  "add $1000, %rax\n"   // +3; less than 0 for numbers below -1000
                  "cmp $5, %rdi\n"      // +9
                  "jl 1f\n"             // +13
                  "add $7, %rax\n"      // +15
                  "mov %rax, -8(%rsp)\n" // +19, in the red zone
                  "add $1, %rax\n"      // +24
                  "nop\n"               // +28
                  "sub -8(%rsp), %rax\n" // +29: 1
                  "add -8(%rsp), %rax\n" // +34
                  "1: ret\n"            // +39
);
long stepped(long value);
// Two bytes each: 8.
ASSEMBLY(short_steps, "xor %eax, %eax\n"
                      "inc %eax\ninc %eax\ninc %eax\ninc %eax\ninc %eax\ninc %eax\ninc %eax\ninc %eax\n"
                      "ret\n");
long short_steps(void);

int main(int argc, char **argv)
{
    begin(argc, argv, 3000);
    long sum = 0, steps = 0;
    for (long turn = 0; turn < size; turn++) {
        sum += stepped(turn - size / 2) * (turn % 7 + 1);
        steps += short_steps();
    }
    say("sum", sum);
    say("steps", steps);
    count("short_steps", size);
    count("stepped", size);
    return end();
}
