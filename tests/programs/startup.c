// Probed functions run before main (constructors) and after it (destructors, atexit).
// long: 300000000
#include "program.h"

static long early, late;

PROBED long work(long value) { return value * 12 + 1; }

__attribute__((constructor)) static void first(void)
{
    for (long turn = 0; turn < 100; turn++)
        early += work(turn);
}

static void last(void)
{
    late = work(1) + work(2);
    say("late", late);
}

int main(int argc, char **argv)
{
    begin(argc, argv, 100);
    atexit(last);
    long sum = 0;
    for (long turn = 0; turn < size; turn++)
        sum += work(turn);
    say("early", early);
    say("sum", sum);
    count_launched("work", 100);
    count("work", size);
    return end();
}
