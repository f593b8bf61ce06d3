// The only thread sleeps SIZE milliseconds at a time: no sleep may end early or be interrupted.
// blocks: time
#include "program.h"
#include <time.h>

#define SLEEPS 2

static long milliseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

PROBED long sleep_a_while(void)
{
    struct timespec span = {size / 1000, size % 1000 * 1000000};
    return nanosleep(&span, NULL);
}

int main(int argc, char **argv)
{
    begin(argc, argv, 300);
    for (int turn = 0; turn < SLEEPS; turn++) {
        long start = milliseconds();
        if (turn == 0)
            say_text("blocking");
        say("returned", sleep_a_while());
        say("long enough", milliseconds() - start >= size - 1);
    }
    if (waits)
        read_line();
    count("sleep_a_while", SLEEPS);
    return end();
}
