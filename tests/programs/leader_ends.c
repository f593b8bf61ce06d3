// The first thread ends early; the process lives on with another, and /proc shows a zombie without memory.
// long: 100000000
#include "program.h"
#include <pthread.h>

static pthread_t leader;

PROBED long work(long value) { return value * 6 + 1; }

static void *carry_on(void *argument)
{
    long sum = 0;
    require(pthread_join(leader, NULL) == 0, "the first thread did not end");
    for (long turn = 0; turn < size; turn++)
        sum += work(turn);
    say("sum", sum);
    count("work", size);
    end();
    exit(argument ? 4 : 3);
}

int main(int argc, char **argv)
{
    pthread_t thread;
    begin(argc, argv, 1000);
    leader = pthread_self();
    require(pthread_create(&thread, NULL, carry_on, NULL) == 0, "no thread");
    pthread_exit(NULL);
}
