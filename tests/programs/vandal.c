// It writes noise over memory that a controller shares with it, or unmaps most of it, or (SIZE % 4) does both.
// only: glibc
#include "program.h"
#include <fcntl.h>
#include <string.h>

#define CHUNK 0x2000UL

PROBED long work(long value) { return value * 8 + 3; }

static unsigned long noise(void)
{
    static unsigned long state = 88172645463325252UL;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

/* The start of each mapping, where headers and the positions in rings are, and one chunk of every MiB. */
static void spoil(unsigned long start, unsigned long end)
{
    for (unsigned long chunk = start; size % 4 < 2 && chunk + CHUNK <= end; chunk += 1UL << 20)
        for (unsigned long at = chunk; at < chunk + CHUNK; at += 8)
            *(volatile unsigned long *)at = noise();
    if (size % 4 && end - start > CHUNK)
        munmap((void *)(start + CHUNK), end - start - CHUNK);
}

static void spoil_all(void)
{
    static char maps[1 << 18];
    size_t used = 0;
    int file = open("/proc/self/maps", O_RDONLY);
    for (ssize_t got; (got = read(file, maps + used, sizeof maps - used - 1)) > 0;)
        used += (size_t)got;
    close(file);
    for (char *line = strtok(maps, "\n"); line; line = strtok(NULL, "\n")) {
        char *rest;
        unsigned long start = strtoul(line, &rest, 16), end = strtoul(rest + 1, &rest, 16);
        if (strstr(line, "rw-s") && strstr(line, "memfd:sidestep"))
            spoil(start, end);
    }
}

int main(int argc, char **argv)
{
    begin(argc, argv, 1000);
    long sum = 0;
    for (long turn = 0; turn < size; turn++)
        sum += work(turn);
    spoil_all();
    if (size % 4 == 0)
        for (long turn = 0; turn < size; turn++)
            sum += work(turn);
    say("sum", sum);
    return end();
}
