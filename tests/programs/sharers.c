// Other processes, not threads, run probed functions in this one's memory all the time: two children of clone(CLONE_VM),
// and one whose own parent, which shared the memory as well, has ended.
// long: 60000000
#include "program.h"
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define CHILDREN 3

static int over, started;
static long calls;

PROBED long work(long value) { return value * 3 + 1; }

static int hammer(void *argument)
{
    add((long *)argument, 0);
    __atomic_add_fetch(&started, 1, __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&over, __ATOMIC_SEQ_CST)) {
        if (work(20) != 61)
            _exit(1);
        add(&calls, 1);
    }
    return 0;
}

/* The thread block is the child's own, as the ABI wants it: its first word is its address. */
static pid_t start(int (*function)(void *))
{
    char *block = new_stack();
    *(char **)block = block;
    pid_t child = clone(function, new_stack() + STACK_SIZE, CLONE_VM | CLONE_SETTLS | SIGCHLD, block, NULL, block);
    return child;
}

static int start_another(void *argument)
{
    add((long *)argument, 0);
    return start(hammer) < 0;
}

int main(int argc, char **argv)
{
    begin(argc, argv, 1000);
    int ended = 0, status;
    require(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0, "orphans do not come here");
    pid_t starter = start(start_another);
    require(start(hammer) > 0 && start(hammer) > 0 && starter > 0, "no child");
    require(waitpid(starter, &status, 0) == starter && status == 0, "the third was not started");
    while (__atomic_load_n(&started, __ATOMIC_SEQ_CST) < CHILDREN)
        sched_yield();
    say_text("working");
    for (long turn = 0; turn < size; turn++)
        require(work(turn) == turn * 3 + 1, "wrong result");
    __atomic_store_n(&over, 1, __ATOMIC_SEQ_CST);
    while (wait(&status) > 0) {
        require(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a child crashed");
        ended++;
    }
    say("ended", ended);
    varying("work", calls + size);
    return end();
}
