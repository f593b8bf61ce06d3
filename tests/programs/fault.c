// The program's own SIGSEGV handler makes memory readable and tries again; it looks at where the fault was.
// long: 40000
#include "program.h"
#include <signal.h>
#include <ucontext.h>

static char *page;
static volatile long faults, right_places, right_addresses;

ASSEMBLY(touch, "xor %eax, %eax\n movzbl (%rdi), %eax\n add $1, %eax\n ret");
ASSEMBLY(touch_first, "movb (%rdi), %al\n movzbl %al, %eax\n add $2, %eax\n ret");
long touch(const char *at), touch_first(const char *at);

static void handle(int number, siginfo_t *info, void *context)
{
    uintptr_t ip = (uintptr_t)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    faults += number == SIGSEGV;
    right_places += ip == (uintptr_t)touch + 2 || ip == (uintptr_t)touch_first;
    right_addresses += info->si_addr == page + 100;
    mprotect(page, 4096, PROT_READ | PROT_WRITE);
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, NULL);
    begin(argc, argv, 50);
    long sum = 0;
    page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (long turn = 0; turn < size; turn++) {
        page[100] = (char)(turn % 100);
        mprotect(page, 4096, PROT_NONE);
        sum += touch(page + 100);
        mprotect(page, 4096, PROT_NONE);
        sum += touch_first(page + 100);
    }
    say("sum", sum);
    say("faults", faults);
    say("right places", right_places);
    say("right addresses", right_addresses);
    count("touch", size);
    count("touch_first", size * 2); // the entry is the instruction that faults: control arrives there again
    return end();
}
