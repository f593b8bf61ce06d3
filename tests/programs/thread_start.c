// The C library's own start of threads and processes, where no probe handler could rely on anything.
// long: 2000
// only: glibc
#include "program.h"
#include <pthread.h>
#include <sys/wait.h>

static void *run(void *argument) { return argument; }

int main(int argc, char **argv)
{
    begin(argc, argv, 20);
    long sum = 0;
    for (long turn = 0; turn < size; turn++) {
        pthread_t thread;
        void *result;
        int status;
        require(pthread_create(&thread, NULL, run, (void *)turn) == 0, "no thread");
        pthread_join(thread, &result);
        sum += (long)result;
        pid_t child = fork();
        if (child == 0)
            _exit((int)(turn % 100));
        require(waitpid(child, &status, 0) == child, "no child");
        sum += WEXITSTATUS(status);
    }
    say("sum", sum);
    count("libc:pthread_create", size);
    count("libc:pthread_join", size);
    count("libc:fork", size);
    return end();
}
