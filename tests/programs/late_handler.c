// SIGSEGV and SIGTRAP handlers are installed after a controller may have attached; both must get their signals.
// long: 100000
#include "program.h"
#include <setjmp.h>
#include <signal.h>

static sigjmp_buf back;
static volatile long traps, faults;

PROBED long work(long value) { return value * 13 + 1; }

static void on_trap(int number) { traps += number == SIGTRAP; }

static void on_fault(int number)
{
    faults += number == SIGSEGV;
    siglongjmp(back, 1);
}

int main(int argc, char **argv)
{
    begin(argc, argv, 50);
    struct sigaction trap = {.sa_handler = on_trap}, fault = {.sa_handler = on_fault}, old;
    sigaction(SIGTRAP, &trap, &old);
    say("SIGTRAP was the default", old.sa_handler == SIG_DFL);
    sigaction(SIGSEGV, &fault, &old);
    say("SIGSEGV was the default", old.sa_handler == SIG_DFL);
    volatile long turn, sum = 0, *volatile nowhere = (volatile long *)8;
    for (turn = 0; turn < size; turn++) {
        sum += work(turn);
        __asm__ volatile("int3");
        if (sigsetjmp(back, 1) == 0)
            sum += *nowhere;
    }
    say("sum", sum);
    say("traps", traps);
    say("faults", faults);
    count("work", size);
    return end();
}
