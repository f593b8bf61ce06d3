// Threads sleep on locks of every kind until a line arrives.
// blocks: line
#include "program.h"
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/syscall.h>
#include <time.h>

#define KINDS 5

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER, other = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static sem_t first, second;
static int word, released;
static long results[KINDS];

PROBED long sleep_on(long kind)
{
    struct timespec until;
    long result = 0;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 60;
    switch (kind) {
    case 0:
        result = syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
        return result ? -errno : 0;
    case 1: return sem_wait(&first) ? -errno : 0; // fails with EINTR if a stop shows
    case 2: return sem_timedwait(&second, &until) ? -errno : 0;
    case 3:
        result = pthread_mutex_lock(&mutex);
        pthread_mutex_unlock(&mutex);
        return result;
    default:
        pthread_mutex_lock(&other);
        while (!released)
            result += pthread_cond_timedwait(&condition, &other, &until);
        pthread_mutex_unlock(&other);
        return result;
    }
}

static void *run(void *argument)
{
    results[(long)argument] = sleep_on((long)argument);
    return NULL;
}

int main(int argc, char **argv)
{
    begin(argc, argv, 1);
    pthread_t threads[KINDS];
    sem_init(&first, 0, 0);
    sem_init(&second, 0, 0);
    pthread_mutex_lock(&mutex);
    for (long kind = 0; kind < KINDS; kind++)
        require(pthread_create(&threads[kind], NULL, run, (void *)kind) == 0, "no thread");
    usleep(50000);
    say_text("blocking");
    read_line();
    while (syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0) != 1 && results[0] == 0)
        usleep(1000);
    sem_post(&first);
    sem_post(&second);
    pthread_mutex_unlock(&mutex);
    pthread_mutex_lock(&other);
    released = 1;
    pthread_cond_broadcast(&condition);
    pthread_mutex_unlock(&other);
    for (int kind = 0; kind < KINDS; kind++) {
        pthread_join(threads[kind], NULL);
        say("result", results[kind]);
    }
    count("sleep_on", KINDS);
    return end();
}
