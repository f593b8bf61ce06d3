// Functions that end by jumping to the next one, so that several return through one return address.
// long: 40000000
#include "program.h"

PROBED long inner(long value, long more) { return value * 2 + more; }
PROBED long middle(long value, long more) { return inner(value + more, more + 1); }
PROBED long outer(long value) { return middle(value - 1, 4); }
PROBED long odd(long value);
PROBED long even(long value) { return value ? odd(value - 1) : 1; }
PROBED long odd(long value) { return value ? even(value - 1) : 0; }

int main(int argc, char **argv)
{
    begin(argc, argv, 1000);
    long sum = 0;
    for (long turn = 0; turn < size; turn++)
        sum += outer(turn) + even(4);
    say("sum", sum);
    count("outer", size);
    count("middle", size);
    count("inner", size);
    count("even", size * 3);
    count("odd", size * 2);
    return end();
}
