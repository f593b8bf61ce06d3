// The program ends by a signal of its own, inside a probed function.
// long: 200000000
// status: -6
#include "program.h"
#include <signal.h>
#include <sys/prctl.h>

PROBED long give_up(long value)
{
    if (value == size)
        raise(SIGABRT);
    return value + 1;
}

int main(int argc, char **argv)
{
    begin(argc, argv, 1000);
    prctl(PR_SET_DUMPABLE, 1);
    for (long value = 0; value <= size;)
        value = give_up(value);
    return end();
}
