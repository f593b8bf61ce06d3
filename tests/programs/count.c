// The plain case: one hot function, called from one thread.
// long: 300000000
#include "program.h"

PROBED long work(long value) { return value * 3 + 1; }

int main(int argc, char **argv)
{
    begin(argc, argv, 1000);
    long sum = 0;
    for (long turn = 0; turn < size; turn++)
        sum += work(turn);
    say("sum", sum);
    count("work", size);
    return end();
}
