// The program exits while its threads still run probed functions; its exit status is 23.
// long: 400
#include "program.h"
#include <pthread.h>

PROBED long work(long value) { return value * 15 + 1; }

static void *hammer(void *argument)
{
    for (;;)
        require(work(2) == 31, "wrong result");
    return argument;
}

int main(int argc, char **argv)
{
    begin(argc, argv, 20);
    pthread_t thread;
    for (int index = 0; index < 3; index++)
        require(pthread_create(&thread, NULL, hammer, NULL) == 0, "no thread");
    usleep((useconds_t)size * 1000);
    say_text("exiting");
    exit(23);
}
