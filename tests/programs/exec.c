// The program replaces itself SIZE times while it may be probed; the last one reports. No count: probes end with exec.
// long: 200
#include "program.h"
#include <pthread.h>

PROBED long work(long value) { return value + 3; }

static void *hammer(void *argument)
{
    for (;;)
        require(work(4) == 7, "wrong result");
    return argument;
}

int main(int argc, char **argv)
{
    char left[24];
    pthread_t thread;
    if (argc > 3) { // exec LEFT x x
        for (size = 0; *argv[1]; argv[1]++)
            size = size * 10 + (*argv[1] - '0');
    } else {
        begin(argc, argv, 3);
        say("start", size);
    }
    require(work(5) == 8, "wrong result");
    if (size == 0) {
        say_text("the last one");
        return 4;
    }
    require(pthread_create(&thread, NULL, hammer, NULL) == 0, "no thread");
    *put_number(left, size - 1) = 0;
    execl("/proc/self/exe", "exec", left, "x", "x", (char *)NULL);
    return 9;
}
