// Functions of one to four bytes: some with padding behind them, some with the next function right behind them.
// long: 20000000
// refusable: dense_one dense_two dense_three
#include "program.h"

ASSEMBLY(one_byte, "ret");
ASSEMBLY(two_bytes, "rep ret");
ASSEMBLY(three_bytes, "xor %eax, %eax\n ret");
ASSEMBLY(four_bytes, "mov %rdi, %rax\n ret");
/* No padding: each starts where the one before ends. */
#define DENSE(name, body) ".globl " name "\n.type " name ", @function\n" name ":\n" body "\n.size " name ", . - " name "\n"
__asm__(".pushsection .text\n.balign 16\n.cfi_startproc\n"
        DENSE("dense_one", "ret") DENSE("dense_two", "inc %rdi\n ret") DENSE("dense_three", "lea 1(%rdi), %eax\n ret")
        DENSE("dense_last", "lea 2(%rdi,%rdi), %rax\n ret") ".cfi_endproc\n.balign 16, 0xcc\n.popsection\n");
long one_byte(long value), two_bytes(long value), three_bytes(long value), four_bytes(long value);
long dense_one(long value), dense_two(long value), dense_three(long value), dense_last(long value);

int main(int argc, char **argv)
{
    begin(argc, argv, 1000);
    long sum = 0;
    for (long turn = 0; turn < size; turn++) {
        one_byte(turn), two_bytes(turn), dense_one(turn), dense_two(turn);
        sum += three_bytes(turn) + four_bytes(turn) + dense_three(turn) + dense_last(turn);
    }
    say("sum", sum);
    count("one_byte", size);
    count("two_bytes", size);
    count("three_bytes", size);
    count("four_bytes", size);
    count("dense_one", size);
    count("dense_two", size);
    count("dense_three", size);
    count("dense_last", size);
    return end();
}
