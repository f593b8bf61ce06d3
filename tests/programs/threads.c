// Eight threads hammer the same functions.
// long: 10000000
#include "program.h"
#include <pthread.h>

#define THREADS 8

PROBED long work(long value) { return value ^ (value << 7); }
PROBED long other(long value, long by) { return value / by + 3; }

static void *run(void *argument)
{
    long sum = (long)argument;
    for (long turn = 0; turn < size; turn++)
        sum += work(turn) + other(turn, (long)argument + 1);
    return (void *)sum;
}

int main(int argc, char **argv)
{
    begin(argc, argv, 1000);
    pthread_t threads[THREADS];
    long sum = 0;
    for (long index = 0; index < THREADS; index++)
        require(pthread_create(&threads[index], NULL, run, (void *)index) == 0, "no thread");
    for (int index = 0; index < THREADS; index++) {
        void *result;
        pthread_join(threads[index], &result);
        sum += (long)result;
    }
    say("sum", sum);
    count("work", THREADS * size);
    count("other", THREADS * size);
    return end();
}
