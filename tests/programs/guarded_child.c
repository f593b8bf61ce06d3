// A child that lives on until after the second wait runs probed code on demand. SIZE says how it protects itself: 1 by
// strict mode, 2 by a filter that allows it little more, 3 by not being dumpable, 0 not at all.
// only: glibc
#include "program.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define CALLS 5
#define ALLOW(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

PROBED long work(long value) { return value * 8 + 3; }

static void protect(long how)
{
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(SYS_read), ALLOW(SYS_write), ALLOW(SYS_exit), ALLOW(SYS_rt_sigreturn), ALLOW(SYS_getpid),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof rules / sizeof *rules, rules};
    if (how == 1)
        require(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0, "no strict mode");
    if (how == 2)
        require(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
                    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0, "no filter");
    if (how == 3)
        require(prctl(PR_SET_DUMPABLE, 0) == 0, "it stays dumpable");
}

static void serve(int requests, int answers)
{
    long value = work(0);
    protect(size);
    while (read(requests, &value, sizeof value) == sizeof value) {
        value = work(value);
        require(write(answers, &value, sizeof value) == sizeof value, "write failed");
    }
    syscall(SYS_exit, 0);
}

int main(int argc, char **argv)
{
    int requests[2], answers[2], status;
    begin(argc, argv, 0);
    require(pipe(requests) == 0 && pipe(answers) == 0, "no pipes");
    pid_t child = fork();
    if (child == 0) {
        close(requests[1]);
        serve(requests[0], answers[1]);
    }
    for (long turn = 0; turn < 2 * CALLS; turn++) {
        long value = turn;
        if (turn == CALLS) {
            count("work", CALLS + 1);
            end();
        }
        require(write(requests[1], &value, sizeof value) == sizeof value, "write failed");
        require(read(answers[0], &value, sizeof value) == sizeof value && value == turn * 8 + 3, "the child ended");
    }
    close(requests[1]);
    require(waitpid(child, &status, 0) == child && WIFEXITED(status), "the child crashed");
    return WEXITSTATUS(status);
}
