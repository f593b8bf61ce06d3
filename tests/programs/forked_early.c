// A child is forked, waits, and works later: what it has inherited can have changed in its parent meanwhile.
// blocks: line
#include "program.h"
#include <sys/wait.h>

PROBED long work(long value) { return (value * 5 ^ value >> 3) + 7; }

int main(int argc, char **argv)
{
    begin(argc, argv, 1000);
    int go[2], status = 0;
    char letter;
    require(pipe(go) == 0, "no pipe");
    pid_t child = fork();
    require(child >= 0, "no fork");
    if (child == 0) {
        if (read(go[0], &letter, 1) != 1)
            _exit(1);
        for (long turn = 0; turn < size; turn++)
            if (work(turn) != (turn * 5 ^ turn >> 3) + 7)
                _exit(2);
        _exit(0);
    }
    say_text("blocking");
    read_line();
    require(write(go[1], "x", 1) == 1, "no pipe to write to");
    require(waitpid(child, &status, 0) == child, "no child to wait for");
    say("status", status);
    count("work", size);
    return end();
}
