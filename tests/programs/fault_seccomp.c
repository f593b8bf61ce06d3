// A program with a handler for faults that must not change its handlers any more: the filter would kill it.
// only: glibc
// refusable: load
#include "program.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>

ASSEMBLY(load, "xor %eax, %eax\n mov %edi, %ecx\n movzbl (%rdi), %eax\n add $1, %eax\n ret");
long load(const void *);

PROBED long work(long value) { return value * 8 + 3; }

static volatile long right;

static void handle(int number, siginfo_t *info, void *context)
{
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    right += number == SIGSEGV && info->si_addr == (void *)64 && registers[REG_RIP] == (greg_t)load + 4;
    registers[REG_RIP] += 3;
}

static void filter(void)
{
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigaction, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof rules / sizeof *rules, rules};
    require(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no new privileges could not be set");
    require(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0, "no filter could be set");
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, NULL);
#ifndef LATER
    filter();
#endif
    begin(argc, argv, 100);
#ifdef LATER
    filter();
#endif
    long sum = 0;
    for (long turn = 0; turn < size; turn++)
        sum += work(turn) + load((void *)64);
    say("sum", sum);
    say("right", right);
    count("work", size);
    count("load", size);
    return end();
}
