// A function of four arguments, all of which matter.
#include "program.h"

static long sum, calls;

PROBED long sum_of_four(long a, long b, long c, long d) { return a + 2 * b + 4 * c + (d & 0); }

int main(int argc, char **argv)
{
    begin(argc, argv, 1000);
    for (long index = 0; index < size; index++, calls++)
        sum += sum_of_four(index, 2, 3, 4);
    say("sum", sum);
    count("sum_of_four", calls);
    return end();
}
