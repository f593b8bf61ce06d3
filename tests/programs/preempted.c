// Green threads that a timer's handler switches between: interrupted contexts wait on stacks of their own.
// refusable: work
#include "program.h"
#include <signal.h>
#include <sys/time.h>
#include <ucontext.h>

#define THREADS 4

static ucontext_t contexts[THREADS], back;
static char stacks[THREADS][1 << 16];
static volatile int current;
static volatile long left, calls;

PROBED long work(long value) { return value * 3 + 1; }

static void on_timer(int number)
{
    (void)number;
    int before = current;
    current = (before + 1) % THREADS;
    swapcontext(&contexts[before], &contexts[current]);
}

static void body(void)
{
    while (left > 0) {
        work(left);
        calls = calls + 1;
        left = left - 1;
    }
    setcontext(&back);
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_handler = on_timer};
    struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    sigaction(SIGALRM, &action, NULL);
    begin(argc, argv, 200000);
    left = size;
    for (int index = 0; index < THREADS; index++) {
        getcontext(&contexts[index]);
        contexts[index].uc_stack.ss_sp = stacks[index];
        contexts[index].uc_stack.ss_size = sizeof stacks[index];
        makecontext(&contexts[index], body, 0);
    }
    setitimer(ITIMER_REAL, &often, NULL);
    swapcontext(&back, &contexts[0]);
    setitimer(ITIMER_REAL, &never, NULL);
    say("done working", left <= 0);
    return end();
}
