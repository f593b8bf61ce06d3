// The direction flag is set while probed code runs and while string instructions run backwards.
// long: 3000000
#include "program.h"

/* Copies rdx bytes backwards from the ends; DF is set from before the call until after it. */
ASSEMBLY(copy_backwards, "lea -1(%rsi,%rdx), %rsi\n lea -1(%rdi,%rdx), %rdi\n mov %rdx, %rcx\n rep movsb\n ret");
ASSEMBLY(call_backwards, "std\n call copy_backwards\n pushfq\n pop %rax\n cld\n shr $10, %rax\n and $1, %eax\n ret");
long call_backwards(char *to, const char *from, size_t bytes);

int main(int argc, char **argv)
{
    char from[40], to[40];
    begin(argc, argv, 100);
    long sum = 0, set = 0;
    for (int index = 0; index < 40; index++)
        from[index] = (char)(index * 3);
    for (long turn = 0; turn < size; turn++) {
        to[turn % 40] = 0;
        set += call_backwards(to, from, 40);
        sum += to[turn % 40];
    }
    say("sum", sum);
    say("set", set);
    count("copy_backwards", size);
    count("call_backwards", size);
    return end();
}
