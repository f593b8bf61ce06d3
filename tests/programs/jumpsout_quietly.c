// A timer's handler jumps out of calls that come seldom enough for every event to find room; then come quiet ones.
#include "program.h"
#include <setjmp.h>
#include <signal.h>
#include <time.h>

static sigjmp_buf before;
static volatile int armed;

PROBED long work(long value) { return value * 3 + 1; }

static void on_timer(int number)
{
    (void)number;
    if (armed) {
        armed = 0;
        siglongjmp(before, 1);
    }
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_handler = on_timer};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
    timer_t timer;
    begin(argc, argv, 300);
    sigaction(SIGALRM, &action, NULL);
    require(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0, "no timer");
    for (volatile long turn = 0; turn < size; turn++) {
        struct itimerspec once = {{0, 0}, {0, 100000 + turn * 37}};
        if (sigsetjmp(before, 1) == 0) {
            armed = 1;
            timer_settime(timer, 0, &once, NULL);
            while (armed) {
                work(1);
                for (volatile int pause = 0; pause < 2000; pause++)
                    ;
            }
        }
    }
    for (int turn = 0; turn < 100; turn++)
        work(2);
    say("turns", size);
    return end();
}
