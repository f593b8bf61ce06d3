// Four threads start other programs by posix_spawn, one after the other: some process always runs in this one's memory.
// long: 60
#include "program.h"
#include <pthread.h>
#include <spawn.h>
#include <sys/wait.h>

#define STARTERS 4

static long calls;

PROBED long work(long value) { return value * 2 + 1; }

static void *start_many(void *argument)
{
    char *words[] = {"spawnstorm", "child", NULL}, *environment[] = {NULL};
    long codes = 0;
    for (long turn = 0; turn < size; turn++) {
        pid_t child;
        int status;
        require(work(20) == 41, "wrong result");
        add(&calls, 1);
        require(posix_spawn(&child, "/proc/self/exe", NULL, NULL, words, environment) == 0, "no spawn");
        require(waitpid(child, &status, 0) == child && WIFEXITED(status), "the child crashed");
        codes += WEXITSTATUS(status);
    }
    return (char *)argument + codes;
}

int main(int argc, char **argv)
{
    if (argc > 1 && argv[1][0] == 'c')
        return 3;
    begin(argc, argv, 3);
    pthread_t starters[STARTERS];
    long codes = 0;
    for (int index = 0; index < STARTERS; index++)
        require(pthread_create(&starters[index], NULL, start_many, NULL) == 0, "no thread");
    for (int index = 0; index < STARTERS; index++) {
        void *result;
        pthread_join(starters[index], &result);
        codes += (long)result;
    }
    say("codes", codes);
    count("work", calls);
    return end();
}
