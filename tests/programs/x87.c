// A full x87 stack, an unusual control word and an unusual MXCSR live across a probed call.
// long: 3000000
#include "program.h"

PROBED long bystander(long value) { return value * 11 + 1; }

/* rdi = argument, rsi = 108 bytes for fnsave, rdx = 4 bytes for MXCSR */
ASSEMBLY(hold, "push %rbx\n push %rbp\n push %r12\n mov %rsi, %rbx\n mov %rdx, %rbp\n sub $16, %rsp\n"
               "fninit\n movw $0x0b7f, (%rsp)\n fldcw (%rsp)\n movl $0xdf80, 4(%rsp)\n ldmxcsr 4(%rsp)\n"
               "fld1\n fldpi\n fldl2e\n fldl2t\n fldlg2\n fldln2\n fldz\n fld1\n call bystander\n"
               "stmxcsr (%rbp)\n fnsave (%rbx)\n fninit\n movl $0x1f80, 4(%rsp)\n ldmxcsr 4(%rsp)\n"
               "add $16, %rsp\n pop %r12\n pop %rbp\n pop %rbx\n ret");
long hold(long value, uint8_t *x87, uint32_t *mxcsr);

int main(int argc, char **argv)
{
    uint8_t x87[108];
    uint32_t mxcsr = 0;
    begin(argc, argv, 100);
    long sum = 0, bytes = 0, modes = 0;
    for (long turn = 0; turn < size; turn++) {
        sum += hold(turn, x87, &mxcsr);
        bytes += x87[0] + x87[1] + x87[4] + x87[5] + x87[8]; // control, status, tags
        for (int index = 28; index < 108; index++)
            bytes += x87[index] * index;
        modes += mxcsr;
    }
    say("sum", sum);
    say("bytes", bytes);
    say("modes", modes);
    count("bystander", size);
    count("hold", size);
    return end();
}
