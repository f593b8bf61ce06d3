// A timer's handler jumps out of whatever it interrupts, and a child is killed in whatever it does.
// long: 300
#include "program.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>

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

static void be_killed(void)
{
    pid_t child = fork();
    if (child == 0)
        for (;;)
            work(1);
    usleep(1000);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

int main(int argc, char **argv)
{
    struct itimerval often = {{0, 2000}, {0, 2000}}, never = {{0, 0}, {0, 0}};
    begin(argc, argv, 40);
    struct sigaction action = {.sa_handler = on_timer};
    sigaction(SIGALRM, &action, NULL);
    for (volatile long turn = 0; turn < size; turn++) {
        setitimer(ITIMER_REAL, &often, NULL);
        if (sigsetjmp(before, 1) == 0)
            for (armed = 1; armed;)
                work(1);
        setitimer(ITIMER_REAL, &never, NULL);
        if (turn % 4 == 0)
            be_killed();
    }
    say("turns", size);
    return end();
}
