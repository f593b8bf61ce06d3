// backtrace() in a handler for faults finds the interrupted function and its callers.
// long: 3000
// only: glibc
// flags: -fno-omit-frame-pointer -rdynamic
#include "program.h"
#include <execinfo.h>
#include <signal.h>
#include <ucontext.h>

ASSEMBLY(load, "xor %eax, %eax\n mov %edi, %ecx\n mov (%rdi), %al\n add $1, %eax\n ret");
long load(const void *);

static volatile long depth, places, right, other_right;

static void handle(int number, siginfo_t *info, void *context)
{
    void *frames[32];
    int found = backtrace(frames, 32);
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    depth = depth * 3 + found;
    for (int each = 0; each < found; each++)
        if (frames[each] == (char *)load + 4)
            places += each;
    right += number == SIGSEGV && info->si_addr == (void *)64;
    registers[REG_RIP] += 2;
}

static void on_other(int number)
{
    void *frames[32];
    other_right += number == SIGUSR1 && backtrace(frames, 32) >= 4;
}

PROBED long outer(long turn) { return load((void *)64) + turn; }

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO}, other = {.sa_handler = on_other};
    void *frames[2];
    backtrace(frames, 2); // loads what it needs
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGUSR1, &other, NULL);
    begin(argc, argv, 30);
    volatile long sum = 0;
    for (long turn = 0; turn < size; turn++) {
        sum += outer(turn);
        raise(SIGUSR1);
    }
    say("sum", sum);
    say("depth", depth);
    say("places", places);
    say("right", right);
    say("other right", other_right);
    count("load", size);
    count("outer", size);
    return end();
}
