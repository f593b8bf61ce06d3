// Threads that are cancelled while they wait in a system call, or just before or behind it.
#include "program.h"
#include <pthread.h>

static int ends[2];
static long cleaned;

static void clean(void *counter) { add(counter, 1); }

PROBED long read_one(int descriptor)
{
    char letter;
    return read(descriptor, &letter, 1);
}

static void *reader(void *argument)
{
    pthread_cleanup_push(clean, argument);
    for (;;)
        read_one(ends[0]);
    pthread_cleanup_pop(0);
    return NULL;
}

int main(int argc, char **argv)
{
    long cancelled = 0;
    begin(argc, argv, 100);
    require(pipe(ends) == 0, "no pipe");
    for (long turn = 0; turn < size; turn++) {
        pthread_t thread;
        void *result;
        require(pthread_create(&thread, NULL, reader, &cleaned) == 0, "no thread");
        usleep((unsigned)(turn * 37 % 400));
        pthread_cancel(thread);
        pthread_join(thread, &result);
        cancelled += result == PTHREAD_CANCELED;
    }
    say("cancelled", cancelled);
    count("read_one", cleaned);
    return end();
}
