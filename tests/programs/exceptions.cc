// C++ exceptions pass through probed frames: caught far up, in the caller, thrown again; destructors run.
// long: 50000
#include "program.h"

struct Guard {
    long &counter;
    explicit Guard(long &counter) : counter(counter) {}
    ~Guard() { counter++; }
};

static long destroyed, descents;

PROBED long descend(long depth)
{
    Guard guard(destroyed);
    descents++;
    if (depth == 0)
        throw 17L;
    return descend(depth - 1) + 1;
}

PROBED long throw_again(long depth)
{
    try {
        return descend(depth);
    } catch (long value) {
        destroyed += 100;
        throw;
    }
}

PROBED long catch_here(long depth)
{
    try {
        return throw_again(depth);
    } catch (long value) {
        return value + depth;
    }
}

int main(int argc, char **argv)
{
    begin(argc, argv, 100);
    long sum = 0;
    for (long turn = 0; turn < size; turn++)
        sum += catch_here(turn % 8);
    say("sum", sum);
    say("destroyed", destroyed);
    count("descend(long)", descents);
    count("throw_again(long)", size);
    count("catch_here(long)", size);
    return end();
}
