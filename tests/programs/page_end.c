// Instructions that lie across cache lines and across pages, and a function that ends where its page does.
// long: 100000000
// refusable: across
#include "program.h"

__asm__(".pushsection .text.pages, \"ax\", @progbits\n.balign 4096\n.skip 4096 - 3, 0xcc\n"
        ".globl across\n.type across, @function\nacross: .cfi_startproc\n lea 0x1234(%rdi), %rax\n ret\n.cfi_endproc\n"
        ".size across, . - across\n.balign 64\n.skip 64 - 2, 0xcc\n"
        ".globl line\n.type line, @function\nline: .cfi_startproc\n mov $0x4321, %eax\n add %rdi, %rax\n ret\n.cfi_endproc\n"
        ".size line, . - line\n.balign 4096\n.skip 4096 - 8, 0xcc\n"
        ".globl last\n.type last, @function\nlast: .cfi_startproc\n lea 0x4444(%rdi), %rax\n ret\n.cfi_endproc\n"
        ".size last, . - last\n.balign 4096\n.popsection\n");
long across(long value), line(long value), last(long value);

int main(int argc, char **argv)
{
    begin(argc, argv, 1000);
    long sum = 0;
    for (long turn = 0; turn < size; turn++)
        sum += across(turn) + line(turn) - last(turn);
    say("sum", sum);
    count("across", size);
    count("line", size);
    count("last", size);
    return end();
}
