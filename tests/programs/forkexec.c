// fork and exec: the child runs a probed function before it becomes another program (itself, unprobed).
// long: 300
#include "program.h"
#include <sys/wait.h>

PROBED long work(long value) { return value * 2 + 40; }

int main(int argc, char **argv)
{
    if (argc > 1 && argv[1][0] == 'c')
        return (int)(work(1) + work(2)) - 80; // 6
    begin(argc, argv, 5);
    long codes = 0, calls = 0;
    for (long turn = 0; turn < size; turn++) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            if (work(turn) == turn * 2 + 40)
                execl("/proc/self/exe", "forkexec", "child", (char *)NULL);
            _exit(99);
        }
        require(waitpid(child, &status, 0) == child && WIFEXITED(status), "the child crashed");
        codes += WEXITSTATUS(status);
        codes += work(turn);
        calls += 2;
    }
    say("codes", codes);
    count("work", calls);
    return end();
}
