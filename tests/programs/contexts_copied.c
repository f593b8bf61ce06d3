// Green threads whose contexts a timer's handler copies out of its signal frame and into it: what was
// interrupted waits in an array, and no stack pointer leads there. Integers only: no vectors are switched.
// long: 200000000
// only: glibc
// flags: -mgeneral-regs-only
#include "program.h"
#include <signal.h>
#include <string.h>
#include <sys/time.h>
#include <ucontext.h>

#define THREADS 4

static gregset_t saved[THREADS];
static char *stacks[THREADS];
static volatile int current;
void *volatile never_called = (void *)swapcontext; // what such programs link in
static volatile long left[THREADS], sums[THREADS], calls[THREADS];

PROBED unsigned work(unsigned value)
{
    value ^= value >> 1;
    value += 3;
    value ^= value << 5;
    return value;
}

static void on_timer(int number, siginfo_t *info, void *argument)
{
    (void)number, (void)info;
    ucontext_t *context = argument;
    memcpy(saved[current], context->uc_mcontext.gregs, sizeof(gregset_t));
    current = (current + 1) % THREADS;
    memcpy(context->uc_mcontext.gregs, saved[current], sizeof(gregset_t));
}

static void body(long index)
{
    for (; left[index] > 0; left[index]--, calls[index]++)
        sums[index] += work((unsigned)left[index]);
    for (int other = 0; other < THREADS; other++)
        while (left[other] > 0)
            ;
}

static void body_for_ever(long index)
{
    body(index);
    for (;;)
        ;
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_sigaction = on_timer, .sa_flags = SA_SIGINFO};
    struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
    sigaction(SIGALRM, &action, NULL);
    begin(argc, argv, 20000);
    for (long index = 0; index < THREADS; index++) {
        left[index] = size / THREADS;
        stacks[index] = new_stack();
        memset(saved[index], 0, sizeof saved[index]);
        saved[index][REG_RIP] = (greg_t)body_for_ever;
        saved[index][REG_RSP] = (greg_t)(stacks[index] + STACK_SIZE - 8);
        saved[index][REG_RDI] = index;
        saved[index][REG_EFL] = 0x202;
        saved[index][REG_CSGSFS] = 0x002b000000000033;
    }
    setitimer(ITIMER_REAL, &often, NULL);
    body(0); // green thread 0 is where main runs
    setitimer(ITIMER_REAL, &never, NULL);
    // What is over must not look like contexts that wait.
    memset(saved, 0, sizeof saved);
    for (int index = 0; index < THREADS; index++)
        free_stack(stacks[index]);
    for (int index = 0; index < THREADS; index++)
        say("sum", sums[index]);
    count("work", calls[0] + calls[1] + calls[2] + calls[3]);
    return end();
}
