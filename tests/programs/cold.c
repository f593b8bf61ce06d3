// A function with a cold part far away, and one of which the compiler makes a specialised copy.
// long: 100000000
// flags: -freorder-blocks-and-partition -fno-inline
#include "program.h"

static long errors;

__attribute__((cold, noinline)) static void complain(long value) { errors += value & 1; }

__attribute__((noinline, noclone)) long work(long value)
{
    if (__builtin_expect(value % 100 == 99, 0)) {
        complain(value);
        if (value % 200 == 199)
            complain(value + 1);
        return -value;
    }
    return value * 2;
}

__attribute__((noinline)) static long specialised(long value, long unused, const long *by)
{
    (void)unused;
    return value / *by;
}

int main(int argc, char **argv)
{
    static const long by = 3;
    begin(argc, argv, 1000);
    long sum = 0;
    for (long turn = 0; turn < size; turn++)
        sum += work(turn) + specialised(turn, 9, &by);
    say("sum", sum);
    say("errors", errors);
    count("work", size);
    return end();
}
