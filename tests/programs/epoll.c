// epoll_wait, poll, ppoll, select and pselect wait for a line: the system never restarts them, so a stop that shows
// makes them return EINTR.
// blocks: line
#include "program.h"
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/select.h>

#define KINDS 5

static int line[2];
static long results[KINDS], errors[KINDS];

PROBED long wait_for_line(long kind)
{
    struct pollfd descriptor = {.fd = line[0], .events = POLLIN};
    struct epoll_event event = {.events = EPOLLIN};
    int poller = epoll_create1(0);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(line[0], &set);
    epoll_ctl(poller, EPOLL_CTL_ADD, line[0], &event);
    errno = 0;
    switch (kind) {
    case 0: return epoll_wait(poller, &event, 1, -1);
    case 1: return poll(&descriptor, 1, -1);
    case 2: return ppoll(&descriptor, 1, NULL, NULL);
    case 3: return select(line[0] + 1, &set, NULL, NULL, NULL);
    default: return pselect(line[0] + 1, &set, NULL, NULL, NULL, NULL);
    }
}

static void *run(void *argument)
{
    long kind = (long)argument;
    results[kind] = wait_for_line(kind);
    errors[kind] = errno;
    return NULL;
}

int main(int argc, char **argv)
{
    static const char *const names[KINDS] = {"epoll_wait", "poll", "ppoll", "select", "pselect"};
    begin(argc, argv, 1);
    pthread_t threads[KINDS];
    require(pipe(line) == 0, "no pipe");
    for (long kind = 0; kind < KINDS; kind++)
        require(pthread_create(&threads[kind], NULL, run, (void *)kind) == 0, "no thread");
    usleep(50000);
    say_text("blocking");
    read_line();
    require(write(line[1], "\n", 1) == 1, "write failed");
    for (int kind = 0; kind < KINDS; kind++)
        pthread_join(threads[kind], NULL);
    for (int kind = 0; kind < KINDS; kind++) {
        say(names[kind], results[kind]);
        say("errno", errors[kind]);
    }
    count("wait_for_line", KINDS);
    return end();
}
