// A profiler: a thousand times a second a signal handler takes a backtrace, wherever the program is at that moment.
// long: 500
// only: glibc
#include "program.h"
#include <execinfo.h>
#include <signal.h>
#include <sys/time.h>

static volatile long samples, empty;

PROBED long leaf(long value) { return value * 3 - 1; }
PROBED long middle(long value) { return leaf(value) + leaf(value + 1); }
PROBED long outer(long value) { return middle(value) * 2; }

static void sample(int number)
{
    void *frames[64];
    if (samples < size) {
        empty += number != SIGPROF || backtrace(frames, 64) < 2;
        samples++;
    }
}

int main(int argc, char **argv)
{
    void *frame;
    backtrace(&frame, 1); // loads the unwinder
    begin(argc, argv, 50);
    struct sigaction action = {.sa_handler = sample, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    long calls = 0;
    sigaction(SIGPROF, &action, NULL);
    setitimer(ITIMER_PROF, &often, NULL);
    while (samples < size) {
        calls++;
        require(outer(calls) == (6 * calls + 1) * 2, "wrong result");
    }
    setitimer(ITIMER_PROF, &never, NULL);
    say("empty", empty);
    varying("outer", calls);
    varying("middle", calls);
    varying("leaf", calls * 2);
    return end();
}
