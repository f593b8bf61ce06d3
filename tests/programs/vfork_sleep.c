// A vfork child sleeps before it runs probed code: so long its parent cannot be stopped, while another thread works.
// long: 60
#include "program.h"
#include <pthread.h>
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
    begin(argc, argv, 3);
    pthread_t thread;
    long codes = 0;
    int status;
    require(pthread_create(&thread, NULL, hammer, NULL) == 0, "no thread");
    for (long turn = 0; turn < size; turn++) {
        pid_t child = vfork();
        if (child == 0) {
            usleep(5000);
            _exit((int)work(turn % 100));
        }
        require(waitpid(child, &status, 0) == child && WIFEXITED(status), "the child crashed");
        codes += WEXITSTATUS(status);
        add(&calls, 1);
    }
    __atomic_store_n(&over, 1, __ATOMIC_SEQ_CST);
    pthread_join(thread, NULL);
    say("codes", codes);
    varying("work", calls);
    return end();
}
