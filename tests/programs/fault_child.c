// Children that were forked while a controller was there, or before, fault in handlers that they have inherited.
// blocks: line
#include "program.h"
#include <signal.h>
#include <sys/wait.h>
#include <ucontext.h>

ASSEMBLY(load, "xor %eax, %eax\n mov %edi, %ecx\n movzbl (%rdi), %eax\n add $1, %eax\n ret");
long load(const void *);

static char *page;
static volatile long right;

static void handle(int number, siginfo_t *info, void *context)
{
    uintptr_t ip = (uintptr_t)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    right += number == SIGSEGV && info->si_addr == page + 10 && ip == (uintptr_t)load + 4;
    mprotect(page, 4096, PROT_READ | PROT_WRITE);
}

static long fault(long times)
{
    long sum = 0;
    for (long turn = 0; turn < times; turn++) {
        mprotect(page, 4096, PROT_NONE);
        sum += load(page + 10);
    }
    return sum;
}

static int signals_to[2];

static pid_t start_child(void)
{
    pid_t child = fork();
    if (child == 0) {
        char letter;
        struct sigaction now;
        while (read(signals_to[0], &letter, 1) < 0)
            ;
        long sum = fault(size);
        sigaction(SIGSEGV, NULL, &now);
        _exit(sum == size && right == size && now.sa_sigaction == handle ? 7 : 8);
    }
    return child;
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, NULL);
    page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(pipe(signals_to) == 0, "no pipe");
    begin(argc, argv, 20);
    pid_t first = start_child();
    say("sum", fault(size));
    right = 0;
    pid_t second = start_child();
    say_text("blocking");
    if (waits)
        read_line();
    require(write(signals_to[1], "ab", 2) == 2, "no letters");
    int one, two;
    waitpid(first, &one, 0);
    waitpid(second, &two, 0);
    say("first", WEXITSTATUS(one));
    say("second", WEXITSTATUS(two));
    count("load", size * 3);
    return end();
}
