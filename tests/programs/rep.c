// String instructions: whole, empty, and faulting midway, where the program's handler opens the page and they go on.
// long: 40000
#include "program.h"
#include <signal.h>
#include <ucontext.h>

static char *pages;
static volatile long faults, right_places;

ASSEMBLY(copy, "mov %rdx, %rcx\n rep movsb\n mov %rdi, %rax\n ret");
ASSEMBLY(fill, "mov %rdx, %rcx\n mov %esi, %eax\n rep stosb\n mov %rdi, %rax\n ret");
ASSEMBLY(find, "mov %rdx, %rcx\n mov %esi, %eax\n repne scasb\n mov %rcx, %rax\n ret");
ASSEMBLY(same, "mov %rdx, %rcx\n cmp %rcx, %rcx\n repe cmpsb\n sete %al\n movzbl %al, %eax\n ret");
char *copy(char *to, const char *from, size_t bytes), *fill(char *to, int letter, size_t bytes);
size_t find(const char *in, int letter, size_t bytes);
long same(const char *first, const char *second, size_t bytes);

static void handle(int number, siginfo_t *info, void *context)
{
    uintptr_t ip = (uintptr_t)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    faults += number == SIGSEGV && info->si_addr == pages + 4096;
    right_places += ip == (uintptr_t)copy + 3 || ip == (uintptr_t)fill + 5;
    mprotect(pages, 8192, PROT_READ | PROT_WRITE);
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO};
    static char from[300];
    sigaction(SIGSEGV, &action, NULL);
    begin(argc, argv, 50);
    pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    long sum = 0;
    for (int index = 0; index < 300; index++)
        from[index] = (char)(index * 7 + 1);
    for (long turn = 0; turn < size; turn++) {
        from[5] = (char)turn;
        mprotect(pages + 4096, 4096, PROT_NONE);
        sum += copy(pages + 4000, from, 200 + turn % 100) - pages;
        sum += same(pages + 4000, from, 200);
        sum += (long)find(pages + 4000, from[150], 200);
        mprotect(pages + 4096, 4096, PROT_NONE);
        sum += fill(pages + 4000, (int)turn, 250) - pages;
        sum += copy(pages, from, 0) - pages;
        sum += pages[4249];
    }
    say("sum", sum);
    say("faults", faults);
    say("right places", right_places);
    count("copy", size * 2);
    count("fill", size);
    count("find", size);
    count("same", size);
    return end();
}
