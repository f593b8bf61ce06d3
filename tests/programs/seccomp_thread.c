// One thread of it is in strict mode; the others filter nothing.
// long: 200000000
// only: glibc
// refused: seccomp
#include "program.h"
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static int ready[2], over[2];

PROBED long work(long value) { return value * 8 + 3; }

static void *confined(void *unused)
{
    char byte = 'x';
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0))
        byte = '!';
    if (write(ready[1], &byte, 1) == 1)
        while (read(over[0], &byte, 1) < 0)
            ;
    syscall(SYS_exit, 0);
    return unused;
}

int main(int argc, char **argv)
{
    pthread_t thread;
    char byte = 0;
    require(pipe(ready) == 0 && pipe(over) == 0, "no pipe");
    require(pthread_create(&thread, NULL, confined, NULL) == 0, "no thread");
    require(read(ready[0], &byte, 1) == 1 && byte == 'x', "no strict mode");
    begin(argc, argv, 1000);
    long sum = 0;
    for (long turn = 0; turn < size; turn++)
        sum += work(turn);
    say("sum", sum);
    count("work", size);
    int status = end();
    close(over[1]);
    return status;
}
