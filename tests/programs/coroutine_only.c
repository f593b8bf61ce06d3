// After its first wait the only thread runs on a stack in a variable; behind its second one on its own again.
// refused: no-stack
// blocks: line
#include "program.h"
#include <ucontext.h>

static ucontext_t first, coroutine;
static char stack[STACK_SIZE];
static long calls;

PROBED long work(long value) { return value * 3 + 1; }

static void run(void)
{
    say_text("blocking");
    read_line();
    for (long turn = 0; turn < size; turn++)
        calls += work(turn) == turn * 3 + 1;
    say_text("blocking");
    read_line();
}

int main(int argc, char **argv)
{
    begin(argc, argv, 1000);
    getcontext(&coroutine);
    coroutine.uc_stack.ss_sp = stack;
    coroutine.uc_stack.ss_size = sizeof stack;
    coroutine.uc_link = &first;
    makecontext(&coroutine, run, 0);
    swapcontext(&first, &coroutine);
    count("work", calls);
    return end();
}
