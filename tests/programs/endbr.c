// Functions that start with endbr64; one is only that and a return, one is entered behind it, too.
// long: 70000000
// flags: -fcf-protection=full
#include "program.h"

PROBED long work(long value) { return value * 3 - 1; }
ASSEMBLY(short_one, "endbr64\n ret");
ASSEMBLY(from_both, "endbr64\n mov %rdi, %rax\n sub $1, %rax\n ret");
ASSEMBLY(behind, "lea 5(%rdi), %rdi\n jmp from_both+4");
long short_one(long value), from_both(long value), behind(long value);
static long (*volatile pointer)(long) = work;

int main(int argc, char **argv)
{
    begin(argc, argv, 1000);
    long sum = 0;
    for (long turn = 0; turn < size; turn++) {
        short_one(turn);
        sum += work(turn) + pointer(turn) + behind(turn) + (turn % 2 ? from_both(turn) : 0);
    }
    say("sum", sum);
    count("work", size * 2);
    count("short_one", size);
    count("behind", size);
    return end();
}
