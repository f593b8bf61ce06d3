// A handler on a small stack of its own runs probed code; every other time it leaves by siglongjmp.
// long: 300000
#include "program.h"
#include <setjmp.h>
#include <signal.h>

static sigjmp_buf back;
static volatile long handled;

PROBED long on_stack(long value) { return value + 5; }
PROBED long leave(long value)
{
    if (value % 2)
        siglongjmp(back, 1);
    return value;
}

static void handle(int number)
{
    require(on_stack(number) == number + 5, "wrong result in the handler");
    leave(handled++);
}

int main(int argc, char **argv)
{
    begin(argc, argv, 100);
    size_t bytes = (size_t)sysconf(_SC_MINSIGSTKSZ) + 2048;
    stack_t stack = {.ss_sp = malloc(bytes), .ss_size = bytes}, now;
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_ONSTACK};
    volatile long turn, jumps = 0;
    sigaltstack(&stack, NULL);
    sigaction(SIGUSR1, &action, NULL);
    for (turn = 0; turn < size; turn++)
        if (sigsetjmp(back, 1))
            jumps++;
        else
            raise(SIGUSR1);
    sigaltstack(NULL, &now);
    say("stack flags", now.ss_flags);
    say("jumps", jumps);
    count("on_stack", size);
    count("leave", size);
    return end();
}
