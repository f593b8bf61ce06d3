// Children run probed functions, and one of them has a child of its own; all live on until after the second wait,
// when they run the functions again and check their own results.
// long: 9000000
#include "program.h"
#include <sys/wait.h>

#define CHILDREN 4

PROBED long work(long value) { return value * 5 + 2; }

static long expected(long turns) { return 5 * (turns * (turns - 1) / 2) + 2 * turns; }

static long work_often(long turns)
{
    long sum = 0;
    for (long turn = 0; turn < turns; turn++)
        sum += work(turn);
    return sum;
}

static void live(int index, long turns, int finished, int release, long *pids, long *right)
{
    char letter;
    pids[index] = getpid();
    if (index == CHILDREN - 1 && fork() == 0) {
        live(CHILDREN, turns + size, finished, release, pids, right);
        _exit(0);
    }
    add(right, work_often(turns) == expected(turns));
    require(write(finished, "x", 1) == 1, "write failed");
    require(read(release, &letter, 1) == 0, "the pipe was not closed");
    if (work_often(turns) != expected(turns))
        _exit(1);
    if (index == CHILDREN - 1) {
        int status;
        require(wait(&status) > 0 && status == 0, "the grandchild failed");
    }
}

int main(int argc, char **argv)
{
    begin(argc, argv, 100);
    long *pids = shared_memory(4096), *right = pids + CHILDREN + 1, calls = size;
    int finished[2], release[2], status, failed = 0;
    require(pipe(finished) == 0 && pipe(release) == 0, "no pipe");
    require(work_often(size) == expected(size), "wrong sum");
    for (int index = 0; index < CHILDREN; index++)
        if (fork() == 0) {
            close(release[1]);
            live(index, (index + 1) * size, finished[1], release[0], pids, right);
            _exit(0);
        }
    for (int index = 0; index <= CHILDREN; index++) {
        char letter;
        require(read(finished[0], &letter, 1) == 1, "a child is missing");
    }
    count_by_pid(getpid(), "work", size);
    for (int index = 0; index <= CHILDREN; index++) {
        count_by_pid(pids[index], "work", (index + 1) * size);
        calls += (index + 1) * size;
    }
    say("right", *right);
    count("work", calls);
    end();
    close(release[1]);
    while (wait(&status) > 0)
        failed |= status;
    return failed ? 3 : 0;
}
