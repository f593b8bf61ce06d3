// A thousand signals a second, whose handler runs probed code while the main program runs probed code; SIZE in all.
// long: 1500
#include "program.h"
#include <signal.h>
#include <sys/time.h>

static volatile long signals;

PROBED long on_signal(long value) { return value * 7 + 1; }
PROBED long work(long value, long by) { return value % by + 2; }

static void handle(int number)
{
    if (signals < size) {
        require(on_signal(number) == number * 7 + 1, "wrong result in the handler");
        signals++;
    }
}

int main(int argc, char **argv)
{
    begin(argc, argv, 50);
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    long calls = 0;
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    while (signals < size) {
        calls++;
        require(work(calls, 10) == calls % 10 + 2, "wrong result");
    }
    setitimer(ITIMER_REAL, &never, NULL);
    count("on_signal", size);
    varying("work", calls);
    return end();
}
