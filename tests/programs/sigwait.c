// Threads wait for a signal in sigwaitinfo, sigtimedwait, sigwait, sigsuspend and pause; a line makes it come.
// blocks: line
#include "program.h"
#include <pthread.h>
#include <signal.h>

#define KINDS 5

static long results[KINDS], errors[KINDS];

static void handle(int number) { (void)number; }

PROBED long wait_for_signal(long kind)
{
    sigset_t set, none;
    struct timespec long_time = {60, 0};
    int number = 0;
    sigemptyset(&none);
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    errno = 0;
    switch (kind) {
    case 0: return sigwaitinfo(&set, NULL);
    case 1: return sigtimedwait(&set, NULL, &long_time);
    case 2: return sigwait(&set, &number) == 0 ? number : -1;
    case 3: return sigsuspend(&none);
    default: return pause();
    }
}

static void *run(void *argument)
{
    long kind = (long)argument;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(kind == 4 ? SIG_UNBLOCK : SIG_BLOCK, &set, NULL);
    results[kind] = wait_for_signal(kind);
    errors[kind] = errno;
    return NULL;
}

int main(int argc, char **argv)
{
    static const char *const names[KINDS] = {"sigwaitinfo", "sigtimedwait", "sigwait", "sigsuspend", "pause"};
    struct sigaction action = {.sa_handler = handle};
    sigaction(SIGUSR1, &action, NULL);
    begin(argc, argv, 1);
    pthread_t threads[KINDS];
    for (long kind = 0; kind < KINDS; kind++)
        require(pthread_create(&threads[kind], NULL, run, (void *)kind) == 0, "no thread");
    usleep(50000);
    say_text("blocking");
    read_line();
    for (int kind = 0; kind < KINDS; kind++) {
        pthread_kill(threads[kind], SIGUSR1);
        pthread_join(threads[kind], NULL);
        say(names[kind], results[kind]);
        say("errno", errors[kind]);
    }
    count("wait_for_signal", KINDS);
    return end();
}
