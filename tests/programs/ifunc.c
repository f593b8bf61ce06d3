// Functions of the C library that have a variant for each kind of processor, and an IFUNC of the program's own.
// long: 10000000
// only: glibc
// refusable: libc:memcpy libc:memcmp libc:strlen
#include "program.h"
#include <string.h>

static long plain(long value) { return value + 1; }
static long fast(long value) { return value + 2; }
static long (*choose(void))(long)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("sse2") ? fast : plain;
}
PROBED long own(long value) __attribute__((ifunc("choose")));

static void *(*volatile copy)(void *, const void *, size_t) = memcpy;
static size_t (*volatile length)(const char *) = strlen;
static int (*volatile compare)(const void *, const void *, size_t) = memcmp;

int main(int argc, char **argv)
{
    static char from[600], to[600];
    begin(argc, argv, 1000);
    for (int index = 0; index < 599; index++)
        from[index] = (char)('a' + index % 20);
    long sum = 0;
    for (long turn = 0; turn < size; turn++) {
        from[turn % 500] ^= 1;
        copy(to, from, (size_t)(turn % 600));
        to[turn % 600] = 0;
        sum += (long)length(to) + (compare(to, from, (size_t)(turn % 600)) == 0) + own(turn);
    }
    say("sum", sum);
    count("libc:memcpy", size);
    count("libc:strlen", size);
    count("libc:memcmp", size);
    count("own", size);
    return end();
}
