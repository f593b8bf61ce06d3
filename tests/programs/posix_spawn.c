// posix_spawn: for a moment another process runs in this one's memory while its parent cannot be stopped.
// long: 500
#include "program.h"
#include <pthread.h>
#include <spawn.h>
#include <sys/wait.h>

static int over;
static long calls;

PROBED long work(long value) { return value * 2 + 1; }

static void *hammer(void *argument)
{
    while (!__atomic_load_n(&over, __ATOMIC_SEQ_CST)) {
        require(work(20) == 41, "wrong result");
        add(&calls, 1);
    }
    return argument;
}

int main(int argc, char **argv)
{
    if (argc > 1 && argv[1][0] == 'c')
        return (int)work(3); // 7
    begin(argc, argv, 5);
    pthread_t thread;
    char *words[] = {"posix_spawn", "child", NULL};
    char *environment[] = {NULL};
    long codes = 0;
    require(pthread_create(&thread, NULL, hammer, NULL) == 0, "no thread");
    for (long turn = 0; turn < size; turn++) {
        pid_t child;
        int status;
        require(posix_spawn(&child, "/proc/self/exe", NULL, NULL, words, environment) == 0, "no spawn");
        require(waitpid(child, &status, 0) == child && WIFEXITED(status), "the child crashed");
        codes += WEXITSTATUS(status);
    }
    __atomic_store_n(&over, 1, __ATOMIC_SEQ_CST);
    pthread_join(thread, NULL);
    say("codes", codes);
    varying("work", calls);
    return end();
}
