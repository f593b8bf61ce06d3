// A child queues SIZE real-time signals, with a number each: every one is delivered once, in order.
// long: 30000
#include "program.h"
#include <signal.h>
#include <sys/wait.h>

static volatile long expected, wrong;

PROBED long on_signal(long value) { return value + 5; }
PROBED long work(long value, long by) { return value % by + 2; }

static void handle(int number, siginfo_t *info, void *context)
{
    (void)number, (void)context;
    wrong += on_signal(info->si_value.sival_int) != expected + 5;
    expected++;
}

int main(int argc, char **argv)
{
    begin(argc, argv, 300);
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigaction(SIGRTMIN, &action, NULL);
    pid_t parent = getpid(), child = fork();
    long calls = 0;
    int status;
    if (child == 0) {
        for (long number = 0; number < size; number++)
            while (sigqueue(parent, SIGRTMIN, (union sigval){.sival_int = (int)number}) < 0)
                require(errno == EAGAIN, "no signal could be queued");
        _exit(0);
    }
    while (expected < size) {
        calls++;
        require(work(calls, 10) == calls % 10 + 2, "wrong result");
    }
    require(waitpid(child, &status, 0) == child && status == 0, "the child crashed");
    say("out of order", wrong);
    count("on_signal", size);
    varying("work", calls);
    return end();
}
