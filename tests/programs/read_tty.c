// Reads from a terminal, a pipe and a socket with a timeout wait until a line arrives; the last is never restarted.
// blocks: line
#include "program.h"
#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <termios.h>

#define KINDS 3

static int readers[KINDS], writers[KINDS];
static long results[KINDS], errors[KINDS];

PROBED long read_some(int descriptor)
{
    char text[16];
    errno = 0;
    return read(descriptor, text, sizeof text);
}

static void *run(void *argument)
{
    long kind = (long)argument;
    results[kind] = read_some(readers[kind]);
    errors[kind] = errno;
    return NULL;
}

int main(int argc, char **argv)
{
    static const char *const names[KINDS] = {"terminal", "pipe", "socket"};
    begin(argc, argv, 1);
    pthread_t threads[KINDS];
    int pair[2];
    struct timeval minute = {60, 0};
    writers[0] = posix_openpt(O_RDWR | O_NOCTTY);
    require(writers[0] >= 0 && grantpt(writers[0]) == 0 && unlockpt(writers[0]) == 0, "no terminal");
    readers[0] = open(ptsname(writers[0]), O_RDWR | O_NOCTTY);
    require(pipe(pair) == 0, "no pipe");
    readers[1] = pair[0], writers[1] = pair[1];
    require(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "no sockets");
    readers[2] = pair[0], writers[2] = pair[1];
    setsockopt(readers[2], SOL_SOCKET, SO_RCVTIMEO, &minute, sizeof minute);
    for (long kind = 0; kind < KINDS; kind++)
        require(pthread_create(&threads[kind], NULL, run, (void *)kind) == 0, "no thread");
    usleep(50000);
    say_text("blocking");
    read_line();
    for (int kind = 0; kind < KINDS; kind++) {
        require(write(writers[kind], "hello\n", 6) == 6, "write failed");
        pthread_join(threads[kind], NULL);
        say(names[kind], results[kind]);
        say("errno", errors[kind]);
    }
    count("read_some", KINDS);
    return end();
}
