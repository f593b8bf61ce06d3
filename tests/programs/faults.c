// Handlers for faults that were installed before: each instruction faults at its own address, and is left by a
// longjmp, tried again, stepped over, or continued elsewhere; also on a stack of its own, and inside a handler.
// long: 1000
// refusable: call_through illegal trap
#include "program.h"
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <ucontext.h>

/* Where each of them faults, behind how many bytes of a short region, is what the numbers say. */
ASSEMBLY(load_third, "xor %eax, %eax\n mov %edi, %ecx\n movzbl (%rdi), %eax\n add $1, %eax\n ret");
ASSEMBLY(load_first, "movb (%rdi), %al\n movzbl %al, %eax\n add $2, %eax\n ret");
ASSEMBLY(load_in_between, "push %rbx\n mov %rdi, %rbx\n mov (%rbx), %al\n inc %eax\n movzbl %al, %eax\n pop %rbx\n ret");
ASSEMBLY(load_long, "xor %eax, %eax\n movzbl 0x12345(%rdi), %eax\n ret");
ASSEMBLY(store_twice, "mov %esi, (%rdi)\n mov %esi, (%rdx)\n mov (%rdi), %eax\n add (%rdx), %eax\n ret");
ASSEMBLY(copy_bytes, "mov %rdx, %rcx\n rep movsb\n mov %rdi, %rax\n ret");
ASSEMBLY(call_through, "push %rbx\n call *(%rdi)\n pop %rbx\n add $1, %eax\n ret");
ASSEMBLY(call_nowhere, "push %rbx\n mov %rdi, %rax\n call *%rax\n pop %rbx\n ret");
ASSEMBLY(divide, "mov %edi, %eax\n cltd\n idiv %esi\n add $3, %eax\n ret");
ASSEMBLY(illegal, "mov %edi, %eax\n ud2\n add $4, %eax\n ret");
ASSEMBLY(trap, "mov %edi, %eax\n int3\n add $5, %eax\n ret");
ASSEMBLY(unaligned, "mov %edi, %eax\n pushf\n orl $0x40000, (%rsp)\n popf\n mov 1(%rsi), %ecx\n pushf\n"
                    "andl $~0x40000, (%rsp)\n popf\n add %ecx, %eax\n ret");
ASSEMBLY(far_away, "mov %rdi, %rax\n mov (%rax), %eax\n ret");
ASSEMBLY(answer, "mov $1000, %eax\n ret");

long load_third(const void *), load_first(const void *), load_in_between(const void *), load_long(const void *);
long store_twice(void *, int, void *), copy_bytes(void *, const void *, long), call_through(void *), call_nowhere(const void *);
long divide(int, int), illegal(int), trap(int), unaligned(int, const void *), far_away(const void *), answer(void);

enum { JUMP_OUT, TRY_AGAIN, STEP_OVER, GO_ELSEWHERE };

static struct {
    int what, length, depth;
    char *function;
    long seen, signals, places, addresses, codes;
} now;
static sigjmp_buf back;
static char *page, *other;

static void sum_up(int number, siginfo_t *info, uintptr_t ip)
{
    now.signals = now.signals * 7 + number;
    now.codes = now.codes * 3 + info->si_code;
    now.places = now.places * 5 + (long)(ip - (uintptr_t)now.function);
    uintptr_t address = (uintptr_t)info->si_addr;
    if (number == SIGILL || number == SIGFPE)
        address -= (uintptr_t)now.function;
    else if (address >= (uintptr_t)page && address < (uintptr_t)page + (1 << 20))
        address -= (uintptr_t)page;
    now.addresses = now.addresses * 11 + (long)address;
    now.seen++;
}

static void handle(int number, siginfo_t *info, void *context)
{
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    sum_up(number, info, (uintptr_t)registers[REG_RIP]);
    if (now.depth) { /* a fault inside the handler */
        now.depth = 0;
        char *before = now.function;
        int what = now.what, length = now.length;
        now.function = (char *)far_away, now.what = STEP_OVER, now.length = 2;
        far_away((void *)16);
        now.function = before, now.what = what, now.length = length;
    }
    switch (now.what) {
    case JUMP_OUT:
        siglongjmp(back, 1);
    case TRY_AGAIN:
        mprotect(page, 4096, PROT_READ | PROT_WRITE);
        mprotect(other, 4096, PROT_READ | PROT_WRITE);
        break;
    case STEP_OVER:
        registers[REG_RIP] += now.length;
        break;
    case GO_ELSEWHERE:
        registers[REG_RIP] = (greg_t)answer;
        break;
    }
}

static void forbid(void)
{
    mprotect(page, 4096, PROT_NONE);
    mprotect(other, 4096, PROT_NONE);
}

static void expect_fault(void *function, int what, int length)
{
    forbid();
    now.function = function, now.what = what, now.length = length;
}

static long loads(void)
{
    volatile long sum = 0;
    struct { long (*load)(const void *); int length; long distance; } all[] = {
        {load_third, 3, 0}, {load_first, 2, 0}, {load_in_between, 2, 0}, {load_long, 7, 0x12345}};
    for (volatile size_t each = 0; each < sizeof all / sizeof *all; each++)
        for (volatile int what = JUMP_OUT; what <= GO_ELSEWHERE; what++) {
            if (all[each].load == load_in_between && what == GO_ELSEWHERE)
                continue; /* it has pushed a register */
            expect_fault((void *)all[each].load, what, all[each].length);
            now.depth = what == TRY_AGAIN;
            if (sigsetjmp(back, 1) == 0) {
                long loaded = all[each].load(page + 100 - all[each].distance);
                sum = sum * 3 + (what == STEP_OVER ? 1 : loaded);
            }
            sum++;
        }
    return sum;
}

static long others(void)
{
    static int zero[] = {0, 7, 8, 9};
    void *through = (void *)answer;
    volatile long sum = 0;
    expect_fault((void *)store_twice, TRY_AGAIN, 2);
    sum += store_twice(page + 4096 - 4, 1000, page + 4096);
    expect_fault((void *)store_twice, STEP_OVER, 2);
    mprotect(page, 4096, PROT_READ | PROT_WRITE);
    memset(page, 0, 4096);
    mprotect(page, 4096, PROT_READ);
    sum += store_twice(page + 8, 2, page + 12);
    expect_fault((void *)copy_bytes, TRY_AGAIN, 2);
    mprotect(page, 4096, PROT_READ | PROT_WRITE);
    sum += copy_bytes(page + 4000, page, 300) - (long)page;
    expect_fault((void *)call_through, TRY_AGAIN, 2);
    mprotect(page, 4096, PROT_READ | PROT_WRITE);
    *(void **)page = through;
    mprotect(page, 4096, PROT_NONE);
    sum += call_through(page);
    if (sigsetjmp(back, 1) == 0) {
        expect_fault((void *)call_nowhere, JUMP_OUT, 2);
        now.function = page;
        sum += call_nowhere(page);
    }
    if (sigsetjmp(back, 1) == 0) { /* an address that is none: the call itself faults */
        expect_fault((void *)call_nowhere, JUMP_OUT, 2);
        sum += call_nowhere((void *)0x123456789abcdef0);
    }
    expect_fault((void *)divide, STEP_OVER, 2);
    sum += divide(40, zero[0]);
    sum += divide(40, zero[2]);
    if (sigsetjmp(back, 1) == 0) {
        expect_fault((void *)divide, JUMP_OUT, 2);
        sum += divide(41, zero[0]);
    }
    expect_fault((void *)illegal, STEP_OVER, 2);
    sum += illegal(4);
    expect_fault((void *)trap, STEP_OVER, 0);
    sum += trap(5);
    expect_fault((void *)unaligned, STEP_OVER, 3);
    sum += unaligned(6, zero) & 0;
    return sum;
}

static void install(void)
{
    static char stack[65536] __attribute__((aligned(16)));
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&alternate, NULL);
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGTRAP, &action, NULL);
    action.sa_flags |= SA_ONSTACK | SA_RESTART;
    sigaction(SIGFPE, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    sigaction(SIGILL, &action, NULL);
}

int main(int argc, char **argv)
{
#ifndef LATER
    install();
#endif
    begin(argc, argv, 40);
#ifdef LATER
    install();
#endif
    page = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    other = page + 4096;
    long sum = 0;
    for (long turn = 0; turn < size; turn++)
        sum = sum * 5 + loads() * 3 + others();
    say("sum", sum);
    say("signals", now.signals);
    say("codes", now.codes);
    say("places", now.places);
    say("addresses", now.addresses);
    say("seen", now.seen);
    count("load_third", size * 4);
    count("load_first", size * 5); // tried again from its first instruction
    count("load_in_between", size * 3);
    count("load_long", size * 4);
    count("store_twice", size * 3);
    count("copy_bytes", size);
    count("call_through", size);
    count("call_nowhere", size * 2);
    count("divide", size * 3);
    count("illegal", size);
    count("trap", size);
    count("unaligned", size);
    count("far_away", size * 4);
    count("answer", size * 4);
    return end();
}
