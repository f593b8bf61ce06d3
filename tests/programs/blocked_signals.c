// All signals are blocked in a thread while it runs probed code, as the C library does around clone and abort.
// long: 100000000
#include "program.h"
#include <pthread.h>
#include <signal.h>

PROBED long work(long value) { return value * 6 + 5; }

static void *run(void *argument)
{
    sigset_t all, seen;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    long sum = (long)argument;
    for (long turn = 0; turn < size; turn++)
        sum += work(turn);
    pthread_sigmask(SIG_SETMASK, NULL, &seen);
    for (int number = 1; number < 32; number++)
        sum += number == SIGKILL || number == SIGSTOP || sigismember(&seen, number);
    return (void *)sum;
}

int main(int argc, char **argv)
{
    begin(argc, argv, 100);
    pthread_t threads[2];
    long sum = 0;
    for (int index = 0; index < 2; index++)
        require(pthread_create(&threads[index], NULL, run, NULL) == 0, "no thread");
    for (int index = 0; index < 2; index++) {
        void *result;
        pthread_join(threads[index], &result);
        sum += (long)result;
    }
    say("sum", sum);
    count("work", size * 2);
    return end();
}
