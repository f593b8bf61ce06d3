// The program takes backtraces of itself from inside probed functions and compares them.
// long: 200000
// only: glibc
#include "program.h"
#include <execinfo.h>

static void *first[64], *frames[64];
static int depth;
static long different;

PROBED long inner(long value)
{
    int found = backtrace(frames, 64);
    if (depth == 0) {
        depth = found;
        for (int index = 0; index < found; index++)
            first[index] = frames[index];
    }
    different += found != depth;
    for (int index = 0; index < found && found == depth; index++)
        different += first[index] != frames[index];
    return value + 1;
}
PROBED long middle(long value) { return inner(value) * 2; }
PROBED long outer(long value) { return middle(value) - 3; }

int main(int argc, char **argv)
{
    backtrace(frames, 1); // loads the unwinder
    begin(argc, argv, 50);
    long sum = 0;
    for (long turn = 0; turn < size; turn++)
        sum += outer(turn);
    say("sum", sum);
    say("different", different);
    say("deep", depth > 4);
    count("outer", size);
    count("middle", size);
    count("inner", size);
    return end();
}
