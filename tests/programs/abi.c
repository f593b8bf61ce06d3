// Functions with other calling conventions: Microsoft's, and nested functions that get their frame in r10.
// long: 100000000
#include "program.h"

PROBED __attribute__((ms_abi)) long microsoft(long a, long b, long c, long d, long e, double f)
{
    return a - b + c - d + e + (long)f;
}

int main(int argc, char **argv)
{
    begin(argc, argv, 1000);
    long sum = 0, calls = 0;
    __attribute__((noipa)) long nested(long value)
    {
        calls++;
        return value + size;
    }
    for (long turn = 0; turn < size; turn++)
        sum += microsoft(turn, 2, 3, 4, 5, 6.5) + nested(turn);
    say("sum", sum);
    count("microsoft", size);
    count("nested.0", calls);
    return end();
}
