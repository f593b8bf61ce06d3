// Its code is a copy in anonymous memory, as programs have it that want huge pages for it.
// only: glibc
// refusable: work
#include "program.h"
#include <string.h>

extern const char __executable_start[], __etext[];

PROBED long work(long value) { return value * 8 + 3; }

/* Runs from a page outside of what it replaces, with system calls of its own. */
static long call(long number, long a, long b, long c, long d, long e, long f)
{
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall" : "+a"(number) : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
    return number;
}

int main(int argc, char **argv)
{
    uintptr_t start = (uintptr_t)__executable_start + 0x1000, stop = ((uintptr_t)__etext + 0xfff) & ~0xfffUL;
    char *copy = mmap(NULL, stop - start, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(copy != MAP_FAILED, "no memory");
    memcpy(copy, (void *)start, stop - start);
    require(mprotect(copy, stop - start, PROT_READ | PROT_EXEC) == 0, "not executable");
    /* mremap puts the copy where the code is: the next instruction comes from there. */
    require(call(25, (long)copy, (long)(stop - start), (long)(stop - start), 3, (long)start, 0) == (long)start, "not moved");
    begin(argc, argv, 1000);
    long sum = 0;
    for (long turn = 0; turn < size; turn++)
        sum += work(turn);
    say("sum", sum);
    count("work", size);
    return end();
}
