// With SIZE 1 no address is free within 2 GiB of its code; with SIZE 2 one stretch of 256 KiB is.
#include "program.h"

#define AROUND (2200L << 20)

PROBED long work(long value) { return value * 5 + 1; }

static void fill(uintptr_t from, uintptr_t to, uintptr_t step)
{
    for (uintptr_t at = from; at < to; at += step)
        if (mmap((void *)at, step, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0) ==
                MAP_FAILED &&
            step > 4096)
            fill(at, at + step, step / 16);
}

int main(int argc, char **argv)
{
    long sum = 0;
    uintptr_t here = (uintptr_t)main & -(1UL << 20);
    if (argc > 1 && (argv[1][0] == '1' || argv[1][0] == '2'))
        fill(here - AROUND, here + AROUND, 1 << 20);
    if (argc > 1 && argv[1][0] == '2')
        munmap((void *)(here - (1L << 30)), 256 << 10);
    begin(argc, argv, 0);
    for (long turn = 0; turn < 1000; turn++)
        sum += work(turn);
    say("sum", sum);
    count("work", 1000);
    return end();
}
