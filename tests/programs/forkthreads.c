// SIZE forks under four threads that hammer the probed functions all the time.
// long: 2000
#include "program.h"
#include <pthread.h>
#include <sys/wait.h>

#define THREADS 4
#define CALLS 25

static long *calls, *wrong;

PROBED long work(long value) { return value * 9 - 4; }
PROBED long in_child(long value) { return work(value) + 1; }

static void *run(void *unused)
{
    for (long turn = 0; turn < size / THREADS; turn++) {
        pid_t child = fork();
        require(child >= 0, "no fork");
        if (child == 0) {
            for (long call = 0; call < CALLS; call++)
                if (in_child(call) != call * 9 - 3)
                    _exit(1);
            add(calls, CALLS);
            _exit(0);
        }
        for (long call = 0; call < CALLS; call++)
            add(wrong, work(call) != call * 9 - 4);
        add(calls, CALLS);
        int status = 0;
        require(waitpid(child, &status, 0) == child, "no child to wait for");
        add(wrong, status != 0);
    }
    return unused;
}

int main(int argc, char **argv)
{
    begin(argc, argv, 200);
    calls = shared_memory(4096);
    wrong = calls + 1;
    pthread_t threads[THREADS];
    for (int index = 0; index < THREADS; index++)
        require(pthread_create(&threads[index], NULL, run, NULL) == 0, "no thread");
    for (int index = 0; index < THREADS; index++)
        pthread_join(threads[index], NULL);
    say("wrong", *wrong);
    count("work", *calls);
    count("in_child", size / THREADS * THREADS * CALLS);
    return end();
}
