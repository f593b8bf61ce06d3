// Threads that end inside probed functions: cancelled while they sleep in one, or by pthread_exit deep down.
// long: 4000
#include "program.h"
#include <pthread.h>
#include <semaphore.h>

static sem_t inside;
static long cleaned;

static void clean(void *counter) { add(counter, 1); }

PROBED long sleep_here(long value)
{
    sem_post(&inside);
    for (;;)
        pause();
    return value;
}

static long (*volatile leave_through)(long);

PROBED long leave_from_here(long depth)
{
    if (depth == 0)
        pthread_exit((void *)42);
    return leave_through(depth - 1) + 1;
}

static void *sleeper(void *argument)
{
    pthread_cleanup_push(clean, &cleaned);
    sleep_here(1);
    pthread_cleanup_pop(0);
    return argument;
}

static void *leaver(void *argument)
{
    pthread_cleanup_push(clean, &cleaned);
    leave_from_here(9);
    pthread_cleanup_pop(0);
    return argument;
}

int main(int argc, char **argv)
{
    begin(argc, argv, 20);
    leave_through = leave_from_here;
    long cancelled = 0, left = 0;
    sem_init(&inside, 0, 0);
    for (long turn = 0; turn < size; turn++) {
        pthread_t first, second;
        void *result;
        require(pthread_create(&first, NULL, sleeper, NULL) == 0, "no thread");
        require(pthread_create(&second, NULL, leaver, NULL) == 0, "no thread");
        require(sem_wait(&inside) == 0, "sem_wait was interrupted");
        pthread_cancel(first);
        pthread_join(first, &result);
        cancelled += result == PTHREAD_CANCELED;
        pthread_join(second, &result);
        left += result == (void *)42;
    }
    say("cancelled", cancelled);
    say("left", left);
    say("cleaned", cleaned);
    count("sleep_here", size);
    count("leave_from_here", size * 10);
    return end();
}
