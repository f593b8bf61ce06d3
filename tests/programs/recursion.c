// Deep recursion, and recursion that branches.
// flags: -fno-optimize-sibling-calls
// long: 20000
#include "program.h"

#define DEPTH 1000

static long fibonacci_calls;

PROBED long descend(long depth, long value) { return depth ? descend(depth - 1, value + depth) + 1 : value; }

PROBED long fibonacci(long number)
{
    fibonacci_calls++;
    return number < 2 ? number : fibonacci(number - 1) + fibonacci(number - 2);
}

int main(int argc, char **argv)
{
    begin(argc, argv, 5);
    long sum = 0;
    for (long turn = 0; turn < size; turn++)
        sum += descend(DEPTH, turn) + fibonacci(12);
    say("sum", sum);
    count("descend", size * (DEPTH + 1));
    count("fibonacci", fibonacci_calls);
    return end();
}
