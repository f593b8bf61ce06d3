// The only thread waits in poll, with and without a limit: the kernel resumes it by a restart block of its own.
// blocks: line
#include "program.h"
#include <poll.h>

PROBED long wait_for_line(int limit)
{
    struct pollfd descriptor = {.fd = 0, .events = POLLIN};
    errno = 0;
    return poll(&descriptor, 1, limit);
}

int main(int argc, char **argv)
{
    begin(argc, argv, 1);
    say_text("blocking");
    say("poll", wait_for_line(-1));
    say("errno", errno);
    read_line();
    say_text("blocking");
    say("poll", wait_for_line(60000));
    say("errno", errno);
    read_line();
    count("wait_for_line", 2);
    return end();
}
