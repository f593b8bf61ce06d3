// SIGTRAP is blocked, then ignored, then waited for with sigtimedwait, then delivered once by SA_RESETHAND.
// long: 70000000
#include "program.h"
#include <signal.h>
#include <time.h>

static volatile long handled;

PROBED long work(long value) { return value * 13 + 2; }

static void handle(int number) { handled += number == SIGTRAP; }

static long work_often(void)
{
    long sum = 0;
    for (long turn = 0; turn < size; turn++)
        sum += work(turn);
    return sum;
}

int main(int argc, char **argv)
{
    begin(argc, argv, 100);
    struct sigaction ignore = {.sa_handler = SIG_IGN}, once = {.sa_handler = handle, .sa_flags = SA_RESETHAND}, now;
    struct timespec second = {1, 0};
    sigset_t trap, pending;
    sigemptyset(&trap);
    sigaddset(&trap, SIGTRAP);
    sigprocmask(SIG_BLOCK, &trap, NULL);
    say("blocked", work_often());
    raise(SIGTRAP);
    sigpending(&pending);
    say("pending", sigismember(&pending, SIGTRAP));
    say("waited for", sigtimedwait(&trap, NULL, &second) == SIGTRAP);
    sigaction(SIGTRAP, &ignore, NULL);
    sigprocmask(SIG_UNBLOCK, &trap, NULL);
    raise(SIGTRAP);
    say("ignored", work_often());
    sigaction(SIGTRAP, &once, NULL);
    raise(SIGTRAP);
    sigaction(SIGTRAP, NULL, &now);
    say("handled", handled);
    say("reset", now.sa_handler == SIG_DFL);
    say("default", work_often());
    count("work", size * 3);
    return end();
}
