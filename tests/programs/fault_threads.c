// Eight threads fault at once, all the time, and try again, step over, or jump out; children do the same.
// long: 3000
// only: glibc
#include "program.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>
#include <ucontext.h>

#define THREADS 8
ASSEMBLY(load, "xor %eax, %eax\n mov %edi, %ecx\n movzbl (%rdi), %eax\n add $1, %eax\n ret");
ASSEMBLY(divide, "mov %edi, %eax\n cltd\n idiv %esi\n add $3, %eax\n ret");
long load(const void *), divide(int, int);

static __thread char *page;
static __thread long turn, sum, last;
static __thread sigjmp_buf back;
static long wrong;

static void handle(int number, siginfo_t *info, void *context)
{
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    uintptr_t ip = (uintptr_t)registers[REG_RIP];
    if (number == SIGFPE) {
        if (ip != (uintptr_t)divide + 3 || info->si_addr != (void *)ip)
            add(&wrong, 1);
        registers[REG_RIP] += 2;
        return;
    }
    if (ip != (uintptr_t)load + 4 || info->si_addr != page + turn % 4096)
        add(&wrong, 1);
    if (turn % 3 == 0)
        siglongjmp(back, 1);
    mprotect(page, 4096, PROT_READ | PROT_WRITE);
}

static void *work(void *unused)
{
    page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (turn = 0; turn < size; turn++) {
        mprotect(page, 4096, PROT_NONE);
        if (sigsetjmp(back, 1) == 0)
            sum += load(page + turn % 4096);
        sum += divide((int)turn, turn % 5 == 0 ? 0 : 1);
        if (turn % 1000 == 500) {
            pid_t child = fork();
            if (child == 0) {
                for (last = turn + 20; turn < last; turn++) {
                    mprotect(page, 4096, PROT_NONE);
                    if (sigsetjmp(back, 1) == 0)
                        sum += load(page + turn % 4096);
                }
                _exit(wrong != 0);
            }
            int status;
            while (waitpid(child, &status, 0) < 0)
                ;
            if (status != 0)
                add(&wrong, 1000);
        }
    }
    munmap(page, 4096);
    return unused;
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, NULL);
    begin(argc, argv, 40);
    sigaction(SIGFPE, &action, NULL);
    pthread_t threads[THREADS];
    for (int each = 0; each < THREADS; each++)
        pthread_create(&threads[each], NULL, work, NULL);
    for (int each = 0; each < THREADS; each++)
        pthread_join(threads[each], NULL);
    say("wrong", wrong);
    long forks = (size + 499) / 1000;
    count("load", THREADS * (size + forks * 20));
    count("divide", THREADS * size);
    return end();
}
