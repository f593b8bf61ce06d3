// With a SIZE above 0 it has as many mappings as a process may have, but SIZE - 1.
#include "program.h"

PROBED long work(long value) { return value * 5 + 1; }

int main(int argc, char **argv)
{
    char *page, *spare[64];
    long sum = 0, made = 0;
    size = 0;
    for (char *letter = argc > 1 ? argv[1] : ""; *letter >= '0' && *letter <= '9'; letter++)
        size = size * 10 + (*letter - '0');
    // Neighbours with different rights are not joined.
    while (size && (page = mmap(NULL, 4096, made & 1 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) !=
                       MAP_FAILED)
        spare[made++ % 64] = page;
    for (long turn = 1; turn < size; turn++)
        munmap(spare[(made - turn) % 64], 4096);
    begin(argc, argv, 0);
    for (long turn = 0; turn < 1000; turn++)
        sum += work(turn);
    say("sum", sum);
    count("work", 1000);
    return end();
}
