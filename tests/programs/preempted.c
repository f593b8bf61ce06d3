// Green threads that a timer's handler switches between: interrupted contexts wait on stacks of their own.
// long: 200000000
// only: glibc
#include "program.h"
#include <signal.h>
#include <sys/time.h>
#include <ucontext.h>

#define THREADS 4

static ucontext_t contexts[THREADS], back;
static sigset_t alarm_only;
static volatile int current;
static volatile long left[THREADS], sums[THREADS], calls[THREADS];

PROBED unsigned work(unsigned value)
{
    value ^= value >> 1;
    value += 3;
    value ^= value << 5;
    return value;
}

static void on_timer(int number)
{
    (void)number;
    int before = current;
    current = (before + 1) % THREADS;
    swapcontext(&contexts[before], &contexts[current]);
}

static void body(int index)
{
    struct itimerval often = {{0, 300}, {0, 300}};
    if (index == 0) // not before a green thread runs, or main would be taken for one
        setitimer(ITIMER_REAL, &often, NULL);
    sigprocmask(SIG_UNBLOCK, &alarm_only, NULL); // nor before this one is on its stack
    for (; left[index] > 0; left[index]--, calls[index]++)
        sums[index] += work((unsigned)left[index]);
    for (int other = 0; other < THREADS; other++)
        while (left[other] > 0)
            ;
    setcontext(&back);
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_handler = on_timer};
    struct itimerval never = {{0, 0}, {0, 0}};
    sigaction(SIGALRM, &action, NULL);
    sigemptyset(&alarm_only);
    sigaddset(&alarm_only, SIGALRM);
    begin(argc, argv, 20000);
    for (int index = 0; index < THREADS; index++) {
        left[index] = size / THREADS;
        getcontext(&contexts[index]);
        contexts[index].uc_sigmask = alarm_only;
        contexts[index].uc_stack.ss_sp = new_stack();
        contexts[index].uc_stack.ss_size = STACK_SIZE;
        makecontext(&contexts[index], (void (*)(void))body, 1, index);
    }
    swapcontext(&back, &contexts[0]);
    setitimer(ITIMER_REAL, &never, NULL);
    for (int index = 0; index < THREADS; index++)
        free_stack(contexts[index].uc_stack.ss_sp);
    for (int index = 0; index < THREADS; index++)
        say("sum", sums[index]);
    count("work", calls[0] + calls[1] + calls[2] + calls[3]);
    return end();
}
