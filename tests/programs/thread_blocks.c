// Threads whose word at fs:0 is not their fs base: zero, the same number in two of them at a time, and for a while in the
// first thread; in a forked child too.
// long: 30000000
#include "program.h"
#include <asm/prctl.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define THREADS 4
#define FLAGS (CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_SETTLS | \
               CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID)

static const long words[THREADS] = {0, 1, -1, -1};
static long block[512];
static pid_t tids[THREADS];
static long *calls;

PROBED long work(long value) { return value * 3 + 1; }

static int hammer(void *unused)
{
    (void)unused;
    for (long turn = 0; turn < size; turn++)
        if (work(turn) != turn * 3 + 1)
            _exit(1);
    add(calls, size);
    return 0;
}

static void start_threads(void)
{
    for (int index = 0; index < THREADS; index++) {
        long *own = (long *)new_stack();
        *own = words[index];
        require(clone(hammer, new_stack() + STACK_SIZE, FLAGS, NULL, &tids[index], own, &tids[index]) > 0, "no thread");
    }
    for (int index = 0; index < THREADS; index++)
        while (__atomic_load_n(&tids[index], __ATOMIC_SEQ_CST))
            sched_yield();
}

static void set_base(unsigned long base)
{
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "0"((long)SYS_arch_prctl), "D"((long)ARCH_SET_FS), "S"(base)
                     : "rcx", "r11", "memory");
}

static void switch_base(void)
{
    unsigned long base;
    require(syscall(SYS_arch_prctl, ARCH_GET_FS, &base) == 0, "no fs base");
    set_base((unsigned long)block);
    hammer(NULL);
    set_base(base);
}

static void all(void)
{
    hammer(NULL);
    start_threads();
    switch_base();
    hammer(NULL);
}

int main(int argc, char **argv)
{
    calls = (long *)shared_memory(4096);
    begin(argc, argv, 1000);
    all();
    long own = *calls;
    int status;
    pid_t child = fork();
    if (child == 0) {
        all();
        _exit(0);
    }
    require(waitpid(child, &status, 0) == child && status == 0, "the child failed");
    count("work", *calls);
    count_by_pid(getpid(), "work", own);
    count_by_pid(child, "work", *calls - own);
    return end();
}
