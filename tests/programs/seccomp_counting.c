// Filters as service managers install them: no page writable and executable, no debugging. Counting gets by.
// long: 200000000
// only: glibc
#include "program.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define ANSWER(value) BPF_STMT(BPF_RET | BPF_K, value)
#define WRITE_AND_EXECUTE (PROT_WRITE | PROT_EXEC)

PROBED long work(long value) { return value * 8 + 3; }

static void install(struct sock_filter *rules, size_t length)
{
    struct sock_fprog program = {(unsigned short)length, rules};
    require(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0, "no filter could be set");
}

int main(int argc, char **argv)
{
    struct sock_filter memory[] = {
        LOAD(nr),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 4),
        LOAD(args[2]),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, WRITE_AND_EXECUTE),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, WRITE_AND_EXECUTE, 0, 4),
        ANSWER(SECCOMP_RET_KILL_PROCESS),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mprotect, 0, 2),
        LOAD(args[2]),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, PROT_EXEC, 1, 0),
        ANSWER(SECCOMP_RET_ALLOW),
        ANSWER(SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_filter debugging[] = {
        LOAD(arch),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0),
        ANSWER(SECCOMP_RET_KILL_PROCESS),
        LOAD(nr),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, SYS_process_vm_readv, 0, 3),
        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, SYS_process_vm_writev, 2, 0),
        BPF_STMT(BPF_MISC | BPF_TAX, 0),
        ANSWER(SECCOMP_RET_KILL_PROCESS),
        ANSWER(SECCOMP_RET_ALLOW),
    };
    require(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no new privileges could not be set");
    install(memory, sizeof memory / sizeof *memory);
    install(debugging, sizeof debugging / sizeof *debugging);
    begin(argc, argv, 1000);
    long sum = 0;
    for (long turn = 0; turn < size; turn++)
        sum += work(turn);
    say("sum", sum);
    count("work", size);
    return end();
}
