// Inside handlers for faults the program waits; controllers may come and go meanwhile. Then it tries again.
// blocks: line
#include "program.h"
#include <signal.h>
#include <ucontext.h>

ASSEMBLY(load_third, "xor %eax, %eax\n mov %edi, %ecx\n movzbl (%rdi), %eax\n add $1, %eax\n ret");
ASSEMBLY(load_first, "movb (%rdi), %al\n movzbl %al, %eax\n add $2, %eax\n ret");
long load_third(const void *), load_first(const void *);

static char *page;
static volatile long right;

static void handle(int number, siginfo_t *info, void *context)
{
    uintptr_t ip = (uintptr_t)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    right += number == SIGSEGV && info->si_addr == page + 10 &&
             (ip == (uintptr_t)load_third + 4 || ip == (uintptr_t)load_first);
    say_text("blocking");
    if (waits)
        read_line();
    mprotect(page, 4096, PROT_READ | PROT_WRITE);
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, NULL);
    begin(argc, argv, 3);
    page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    long sum = 0;
    for (long turn = 0; turn < size; turn++) {
        mprotect(page, 4096, PROT_NONE);
        sum += load_third(page + 10);
        mprotect(page, 4096, PROT_NONE);
        sum += load_first(page + 10);
    }
    say("sum", sum);
    say("right", right);
    count("load_third", size);
    count("load_first", size * 2);
    return end();
}
