// A handler for faults throws, and the interrupted function's caller catches.
// long: 3000
// only: glibc
// flags: -fnon-call-exceptions
#include "program.h"
#include <signal.h>

struct Fault {
    long address;
};

static void handle(int, siginfo_t *info, void *) { throw Fault{(long)info->si_addr}; }

PROBED long load(const long *from) { return *from + from[1] + 1; }

PROBED long guarded(const long *from, volatile long *cleaned)
{
    struct Cleaner {
        volatile long *cleaned;
        ~Cleaner() { *cleaned += 1; }
    } cleaner{cleaned};
    return load(from) * 2;
}

int main(int argc, char **argv)
{
    struct sigaction action = {};
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &action, nullptr);
    begin(argc, argv, 30);
    volatile long cleaned = 0, caught = 0, sum = 0;
    long words[2] = {5, 6};
    for (long turn = 0; turn < size; turn++)
        try {
            sum += guarded(turn % 2 ? words : (const long *)64, &cleaned);
        } catch (const Fault &fault) {
            caught += fault.address;
        }
    say("sum", sum);
    say("caught", caught);
    say("cleaned", cleaned);
    count("load(long const*)", size);
    count("guarded(long const*, long volatile*)", size);
    return end();
}
