// Threads come and go all the time: four starters each start SIZE short-lived threads, one after the other.
// long: 8000
#include "program.h"
#include <pthread.h>

#define STARTERS 4
#define CALLS 5

static long calls;

PROBED long work(long value) { return value + 17; }

static void *live_shortly(void *argument)
{
    long value = (long)argument;
    for (int call = 0; call < CALLS; call++)
        value = work(value);
    add(&calls, CALLS);
    return (void *)value;
}

static void *start_many(void *argument)
{
    long sum = (long)argument;
    for (long turn = 0; turn < size; turn++) {
        pthread_t thread;
        void *result;
        require(pthread_create(&thread, NULL, live_shortly, (void *)turn) == 0, "no thread");
        pthread_join(thread, &result);
        sum += (long)result;
    }
    return (void *)sum;
}

int main(int argc, char **argv)
{
    begin(argc, argv, 50);
    pthread_t starters[STARTERS];
    long sum = 0;
    for (int index = 0; index < STARTERS; index++)
        require(pthread_create(&starters[index], NULL, start_many, NULL) == 0, "no thread");
    for (int index = 0; index < STARTERS; index++) {
        void *result;
        pthread_join(starters[index], &result);
        sum += (long)result;
    }
    say("sum", sum);
    count("work", calls);
    count("live_shortly", STARTERS * size);
    return end();
}
