// A thousand threads wait for a line, and then run probed code.
// blocks: line
#include "program.h"
#include <pthread.h>

#define THREADS 1000

static pthread_barrier_t there;
static int line[2];
static long sum;

PROBED long work(long value) { return value * 9 + 4; }

static void *run(void *argument)
{
    char letter;
    pthread_barrier_wait(&there);
    require(read(line[0], &letter, 1) == 0, "the wait was interrupted");
    add(&sum, work((long)argument));
    return NULL;
}

int main(int argc, char **argv)
{
    static pthread_t threads[THREADS];
    pthread_attr_t small;
    begin(argc, argv, 1);
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    pthread_barrier_init(&there, NULL, THREADS + 1);
    require(pipe(line) == 0, "no pipe");
    for (long index = 0; index < THREADS; index++)
        require(pthread_create(&threads[index], &small, run, (void *)index) == 0, "no thread");
    pthread_barrier_wait(&there);
    say_text("blocking");
    read_line();
    close(line[1]);
    for (int index = 0; index < THREADS; index++)
        pthread_join(threads[index], NULL);
    say("sum", sum);
    count("work", THREADS);
    return end();
}
