// Loops that branch back into the first five bytes of a function, and to its first byte, by short and near jumps.
// long: 3000000
// refusable: to_first to_second to_third to_fourth
#include "program.h"

#define TURNS 50

/* The loop's head is the entry itself: control arrives there TURNS times a call. */
ASSEMBLY(to_entry, "add $2, %rsi\n dec %rdi\n jnz to_entry\n mov %rsi, %rax\n ret");
ASSEMBLY(to_entry_near, "add $3, %rsi\n dec %rdi\n .byte 0x0f, 0x85\n .long to_entry_near - . - 4\n mov %rsi, %rax\n ret");
ASSEMBLY(to_first, "push %rbx\n 1: inc %rsi\n dec %rdi\n jnz 1b\n pop %rbx\n mov %rsi, %rax\n ret");
ASSEMBLY(to_second, "xor %eax, %eax\n 1: add %rsi, %rax\n dec %rdi\n jg 1b\n ret");
ASSEMBLY(to_third, "mov %rsi, %rax\n 1: inc %rax\n dec %edi\n .byte 0x0f, 0x8f\n .long 1b - . - 4\n ret");
ASSEMBLY(to_fourth, "lea (%rsi,%rsi), %rax\n 1: dec %rax\n dec %edi\n jge 1b\n ret");
long to_entry(long turns, long value), to_entry_near(long turns, long value), to_first(long turns, long value);
long to_second(long turns, long value), to_third(long turns, long value), to_fourth(long turns, long value);

int main(int argc, char **argv)
{
    begin(argc, argv, 100);
    long sum = 0;
    for (long turn = 0; turn < size; turn++)
        sum += to_entry(TURNS, turn) + to_entry_near(TURNS, turn) + to_first(TURNS, turn) + to_second(TURNS, turn) +
               to_third(TURNS, turn) + to_fourth(TURNS, turn);
    say("sum", sum);
    count("to_entry", size * TURNS);
    count("to_entry_near", size * TURNS);
    count("to_first", size);
    count("to_second", size);
    count("to_third", size);
    count("to_fourth", size);
    return end();
}
