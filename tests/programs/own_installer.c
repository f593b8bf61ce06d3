// A program that installs its handler for faults with a system call of its own, which nobody can see coming.
// refusable: load
#include "program.h"
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>

ASSEMBLY(load, "xor %eax, %eax\n mov %edi, %ecx\n movzbl (%rdi), %eax\n add $1, %eax\n ret");
ASSEMBLY(come_back, "mov $15, %eax\n syscall");
ASSEMBLY(install, "mov $8, %r10d\n xor %edx, %edx\n mov $13, %eax\n syscall\n ret");
long load(const void *), install(int, const void *);
void come_back(void);

PROBED long work(long value) { return value * 8 + 5; }

static volatile long right;

static void handle(int number, siginfo_t *info, void *context)
{
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    right += number == SIGSEGV && info->si_addr == (void *)64 && registers[REG_RIP] == (greg_t)load + 4;
    registers[REG_RIP] += 3;
}

int main(int argc, char **argv)
{
    struct {
        void (*handler)(int, siginfo_t *, void *);
        unsigned long flags;
        void (*restorer)(void);
        unsigned long mask;
    } action = {handle, SA_SIGINFO | 0x04000000, come_back, 0};
    require(install(SIGSEGV, &action) == 0, "no handler");
    begin(argc, argv, 100);
    long sum = 0;
    for (long turn = 0; turn < size; turn++)
        sum += work(turn) + load((void *)64);
    say("sum", sum);
    say("right", right);
    count("work", size);
    count("load", size);
    return end();
}
