// Sleeps of SIZE milliseconds must last as long, must not be interrupted, and must not start over.
// blocks: time
#include "program.h"
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <time.h>

#define KINDS 6

static long results[KINDS], in_time[KINDS];

static long milliseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

PROBED long sleep_a_while(long kind)
{
    struct timespec span = {size / 1000, size % 1000 * 1000000}, until;
    struct timeval limit = {size / 1000, size % 1000 * 1000};
    switch (kind) {
    case 0: return nanosleep(&span, NULL);
    case 1: return clock_nanosleep(CLOCK_MONOTONIC, 0, &span, NULL);
    case 2: return usleep((useconds_t)size * 1000);
    case 3: return poll(NULL, 0, (int)size);
    case 4: return select(0, NULL, NULL, NULL, &limit);
    default:
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += span.tv_nsec;
        until.tv_sec += span.tv_sec + until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        return clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    }
}

static void *run(void *argument)
{
    long kind = (long)argument, start = milliseconds();
    results[kind] = sleep_a_while(kind);
    long lasted = milliseconds() - start;
    in_time[kind] = lasted >= size - 1 && lasted < size * 2 + 2000;
    return NULL;
}

int main(int argc, char **argv)
{
    begin(argc, argv, 400);
    pthread_t threads[KINDS];
    for (long kind = 0; kind < KINDS; kind++)
        require(pthread_create(&threads[kind], NULL, run, (void *)kind) == 0, "no thread");
    say_text("blocking");
    for (int kind = 0; kind < KINDS; kind++) {
        pthread_join(threads[kind], NULL);
        say("returned", results[kind]);
        say("in time", in_time[kind]);
    }
    if (waits)
        read_line();
    count("sleep_a_while", KINDS);
    return end();
}
