// Every way to get a child: fork and vfork in a probed function, fork and exec of nothing, posix_spawn, and a daemon
// that is forked twice and lives until the end.
// long: 100
#include "program.h"
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;
static long *daemon_pid, workers[4096], worker_count; // the workers called `work` once each

PROBED long work(long value) { return value * 3 + 1; }

PROBED pid_t fork_here(int twice)
{
    pid_t child = fork();
    return child == 0 && twice ? fork() : child;
}

static void check(long value) { require(work(value) == value * 3 + 1, "wrong result"); }

static int end_of(pid_t child)
{
    int status = 0;
    require(child > 0 && waitpid(child, &status, 0) == child, "no child");
    return status;
}

static long fork_and_work(void)
{
    pid_t child = fork_here(0);
    if (child == 0) {
        check(1);
        _exit(3);
    }
    check(2);
    workers[worker_count++] = child;
    return WEXITSTATUS(end_of(child));
}

static long fork_and_fail_to_execute(void)
{
    char *const words[] = {"nothing", NULL};
    pid_t child = fork_here(0);
    if (child == 0) {
        execve("/nonexistent/nothing", words, environ);
        check(3);
        _exit(errno == ENOENT ? 4 : 5);
    }
    workers[worker_count++] = child;
    return WEXITSTATUS(end_of(child));
}

static long spawn(const char *program)
{
    char *const words[] = {"true", NULL};
    pid_t child = 0;
    int error = posix_spawn(&child, program, NULL, NULL, words, environ);
    check(4);
    return error ? error : end_of(child);
}

/* The daemon works, says so, and lives until the pipe is closed. */
static void start_daemon(void)
{
    int started[2], ends[2];
    char letter;
    pid_t self = getpid();
    require(pipe(started) == 0 && pipe(ends) == 0, "no pipe");
    pid_t child = fork_here(1);
    if (child == 0) { // the second child
        close(ends[1]);
        setsid();
        check(5);
        *daemon_pid = getpid();
        require(write(started[1], "x", 1) == 1, "write failed");
        if (read(ends[0], &letter, 1) == 0)
            check(6);
        _exit(0);
    }
    if (getpid() != self)
        _exit(0); // the first child
    require(end_of(child) == 0 && read(started[0], &letter, 1) == 1, "no daemon");
}

int main(int argc, char **argv)
{
    begin(argc, argv, 5);
    require(2 * size <= 4096, "too many children");
    daemon_pid = shared_memory(4096);
    long codes = 0;
    for (long turn = 0; turn < size; turn++)
        codes += fork_and_work() + fork_and_fail_to_execute() + spawn("/bin/true") + spawn("/nonexistent/x");
    start_daemon();
    say("codes", codes);
    count("work", 5 * size + 1);
    count("fork_here", 2 * size + 1);
    count_by_pid(getpid(), "work", 3 * size);
    for (long index = 0; index < worker_count; index++)
        count_by_pid(workers[index], "work", 1);
    count_by_pid(*daemon_pid, "work", 1); // the last line
    return end();
}
