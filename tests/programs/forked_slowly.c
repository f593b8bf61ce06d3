// A child is forked and waits until something comes through a pipe; it works then, and its parent before and after.
// blocks: line
#include "program.h"
#include <sys/wait.h>

ASSEMBLY(work, "mov %rdi, %rax\n shl $7, %rax\n xor %rdi, %rax\n ret\n nop\n nop\n nop\n nop");
ASSEMBLY(other, "lea 9(%rdi,%rdi,4), %rax\n add $1, %rax\n ret\n nop\n nop\n nop");
long work(long value);
long other(long value);

static long run(void)
{
    long wrong = 0;
    for (long turn = 0; turn < size; turn++) {
        wrong += work(turn) != (turn ^ turn << 7);
        wrong += other(turn) != turn * 5 + 10;
    }
    return wrong;
}

int main(int argc, char **argv)
{
    begin(argc, argv, 1000);
    int go[2], status = 0;
    require(pipe(go) == 0, "no pipe");
    require(run() == 0, "wrong result");
    pid_t child = fork();
    require(child >= 0, "no fork");
    if (child == 0) {
        char letter;
        if (read(go[0], &letter, 1) != 1)
            _exit(1);
        _exit(run() == 0 ? 0 : 2);
    }
    say("pipe", go[1]);
    say_text("blocking");
    read_line();
    require(write(go[1], "x", 1) == 1, "no pipe to write to");
    require(waitpid(child, &status, 0) == child, "no child to wait for");
    say("status", status);
    require(run() == 0, "wrong result");
    count("work", 3 * size);
    count("other", 3 * size);
    count_by_pid(getpid(), "work", 2 * size);
    count_by_pid(child, "work", size);
    return end();
}
