// A vfork child runs probed functions in its parent's memory, then exits or becomes another program.
// long: 1000
#include "program.h"
#include <sys/wait.h>

PROBED long work(long value) { return value * 2 + 11; }

int main(int argc, char **argv)
{
    if (argc > 1 && argv[1][0] == 'c')
        return 5;
    begin(argc, argv, 10);
    long codes = 0, calls = 0;
    for (long turn = 0; turn < size; turn++) {
        int status;
        pid_t child = vfork();
        if (child == 0) {
            if (turn % 2 && work(turn) == turn * 2 + 11)
                execl("/proc/self/exe", "vfork", "child", (char *)NULL);
            _exit((int)(work(turn % 100) & 63));
        }
        require(waitpid(child, &status, 0) == child && WIFEXITED(status), "the child crashed");
        codes += WEXITSTATUS(status) + work(turn);
        calls += 2;
    }
    say("codes", codes);
    count("work", calls);
    return end();
}
