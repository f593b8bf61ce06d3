// Coroutines with small stacks of their own, made with swapcontext, resumed by two threads in turn.
// long: 200000
// only: glibc
#include "program.h"
#include <pthread.h>
#include <semaphore.h>
#include <ucontext.h>

#define COROUTINES 4

static ucontext_t coroutines[COROUTINES], resumer;
static sem_t turns[2];
static long sums[COROUTINES], calls;

PROBED long step(long value)
{
    calls++;
    return value * 3 + 1;
}

PROBED long yield_inside(long index, long value)
{
    swapcontext(&coroutines[index], &resumer); // may come back on another thread
    return value + index;
}

static void live(int index)
{
    for (long value = 0;; value++)
        sums[index] += yield_inside(index, step(value));
}

static void *resume(void *argument)
{
    long thread = (long)argument;
    for (long turn = thread; turn < size; turn += 2) {
        sem_wait(&turns[thread]);
        swapcontext(&resumer, &coroutines[turn / 3 % COROUTINES]);
        sem_post(&turns[!thread]);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    begin(argc, argv, 500);
    pthread_t threads[2];
    for (int index = 0; index < COROUTINES; index++) {
        getcontext(&coroutines[index]);
        coroutines[index].uc_stack.ss_sp = malloc(16384);
        coroutines[index].uc_stack.ss_size = 16384;
        makecontext(&coroutines[index], (void (*)(void))live, 1, index);
    }
    sem_init(&turns[0], 0, 1);
    sem_init(&turns[1], 0, 0);
    for (long index = 0; index < 2; index++)
        require(pthread_create(&threads[index], NULL, resume, (void *)index) == 0, "no thread");
    for (int index = 0; index < 2; index++)
        pthread_join(threads[index], NULL);
    for (int index = 0; index < COROUTINES; index++)
        say("sum", sums[index]);
    count("step", calls);
    count("yield_inside", calls);
    return end();
}
