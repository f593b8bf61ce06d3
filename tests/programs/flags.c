// Every combination of the flags lives across every instruction of a function, and every condition is taken.
// long: 20000
#include "program.h"

/* rdi = flags; returns the flags after instructions that leave them alone. */
ASSEMBLY(keep_flags, "push %rdi\n popfq\n mov %rdi, %rax\n lea 8(%rax,%rdi), %rcx\n nop\n xchg %rcx, %rax\n"
                     "bswap %eax\n not %rax\n movzbl %al, %edx\n push %rdx\n pop %rsi\n nopl 0(%rax)\n"
                     "jmp 1f\n 1: call 2f\n 2: pop %rdx\n mov $1, %ecx\n jrcxz 3f\n 3: pushfq\n pop %rax\n cld\n ret");
/* A bit for each condition that holds, out of short jumps. */
#define SHORT(condition, bit) "j" condition " 1f\n jmp 2f\n 1: lea " bit "(%rax), %rax\n 2:\n"
#define NEAR(code, bit) ".byte 0x0f, " code "\n .long 1f - . - 4\n jmp 2f\n 1: lea " bit "(%rax), %rax\n 2:\n"
ASSEMBLY(jump_short, "push %rdi\n popfq\n mov $0, %eax\n" SHORT("o", "1") SHORT("no", "2") SHORT("b", "4")
                     SHORT("ae", "8") SHORT("e", "16") SHORT("ne", "32") SHORT("be", "64") SHORT("a", "128")
                     SHORT("s", "256") SHORT("ns", "512") SHORT("p", "1024") SHORT("np", "2048") SHORT("l", "4096")
                     SHORT("ge", "8192") SHORT("le", "16384") SHORT("g", "32768") "cld\n ret");
ASSEMBLY(jump_near, "push %rdi\n popfq\n mov $0, %eax\n" NEAR("0x80", "1") NEAR("0x81", "2") NEAR("0x82", "4")
                    NEAR("0x83", "8") NEAR("0x84", "16") NEAR("0x85", "32") NEAR("0x86", "64") NEAR("0x87", "128")
                    NEAR("0x88", "256") NEAR("0x89", "512") NEAR("0x8a", "1024") NEAR("0x8b", "2048")
                    NEAR("0x8c", "4096") NEAR("0x8d", "8192") NEAR("0x8e", "16384") NEAR("0x8f", "32768") "cld\n ret");
/* Carries and conditional moves straight at the entry: the flags of the caller are live there. */
ASSEMBLY(carry_on, "adc $0, %rsi\n setc %al\n movzbl %al, %eax\n rcl $1, %rax\n cmovc %rsi, %rax\n lea (%rax,%rsi), %rax\n ret");
ASSEMBLY(call_carry_on, "push %rbx\n mov $7, %esi\n push %rdi\n popfq\n call carry_on\n cld\n pop %rbx\n ret");
long keep_flags(long flags), jump_short(long flags), jump_near(long flags), call_carry_on(long flags);

int main(int argc, char **argv)
{
    static const int bits[] = {0, 2, 4, 6, 7, 10, 11}; // CF PF AF ZF SF DF OF
    begin(argc, argv, 3);
    long sum = 0;
    for (long turn = 0; turn < size; turn++)
        for (int chosen = 0; chosen < 128; chosen++) {
            long flags = 0x202;
            for (int index = 0; index < 7; index++)
                flags |= (long)(chosen >> index & 1) << bits[index];
            require(keep_flags(flags) == flags, "flags changed");
            require(jump_short(flags) == jump_near(flags), "a condition went wrong");
            sum = (sum * 31 + jump_short(flags) + call_carry_on(flags)) & 0xffffffffffff;
        }
    say("sum", sum);
    count("keep_flags", size * 128);
    count("jump_short", size * 256);
    count("jump_near", size * 128);
    count("carry_on", size * 128);
    count("call_carry_on", size * 128);
    return end();
}
