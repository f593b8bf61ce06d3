// Calls that the system never restarts wait until a line arrives: on sockets with a time limit, inotify, semaphores with
// a limit, full message queues, asynchronous I/O, epoll with a mask or a fine limit.
// blocks: line
// only: glibc
#include "program.h"
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>

enum { RECV, RECVMSG, ACCEPT, SEND, INOTIFY, SEMTIMEDOP, MSGSND, IO_GETEVENTS, IO_URING, EPOLL_PWAIT, EPOLL_PWAIT2, KINDS };
static const char *const names[KINDS] = {"recv", "recvmsg", "accept", "send", "inotify", "semtimedop",
                                         "msgsnd", "io_getevents", "io_uring_enter", "epoll_pwait", "epoll_pwait2"};

static struct timeval minute = {60, 0};
static struct timespec fine_minute = {60, 0};
static int pair[2][2], full[2], listener, watch, semaphores, queue, poller, line[2], uring = -1;
static aio_context_t context;
static long results[KINDS], errors[KINDS];
static struct { long type; char text[4096]; } message = {1, ""};
static char large[1 << 20];

PROBED long wait_here(long kind)
{
    struct sembuf down = {0, -1, 0};
    struct epoll_event event;
    struct io_event done;
    struct iovec part = {large, 1};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
    errno = 0;
    switch (kind) {
    case RECV: return recv(pair[0][0], large, 1, 0);
    case RECVMSG: return recvmsg(pair[1][0], &header, 0);
    case ACCEPT: return accept(listener, NULL, NULL) > 0;
    case SEND: return send(full[0], large, 1, 0);
    case INOTIFY: return read(watch, large, 4096) > 0;
    case SEMTIMEDOP: return semtimedop(semaphores, &down, 1, &fine_minute);
    case MSGSND: return msgsnd(queue, &message, sizeof message.text, 0);
    case IO_GETEVENTS: return syscall(SYS_io_getevents, context, 1L, 1L, &done, NULL);
    case IO_URING: return syscall(SYS_io_uring_enter, uring, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0);
    case EPOLL_PWAIT: return epoll_pwait(poller, &event, 1, 60000, NULL);
    default: return syscall(SYS_epoll_pwait2, poller, &event, 1, &fine_minute, NULL, 0);
    }
}

static void *run(void *argument)
{
    long kind = (long)argument;
    results[kind] = wait_here(kind);
    errors[kind] = errno;
    return NULL;
}

/* Both ask to be told when there is a line. */
static void start_asynchronous(void)
{
    struct iocb request = {.aio_lio_opcode = IOCB_CMD_POLL, .aio_fildes = (unsigned)line[0], .aio_buf = POLLIN}, *list = &request;
    struct io_uring_params parameters = {0};
    if (syscall(SYS_io_setup, 8L, &context) == 0)
        require(syscall(SYS_io_submit, context, 1L, &list) == 1, "io_submit failed");
    uring = (int)syscall(SYS_io_uring_setup, 4, &parameters);
    if (uring < 0)
        return;
    size_t bytes = parameters.sq_off.array + parameters.sq_entries * 4;
    char *ring = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, uring, IORING_OFF_SQ_RING);
    struct io_uring_sqe *entry = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, uring, IORING_OFF_SQES);
    require(ring != MAP_FAILED && entry != MAP_FAILED, "no rings");
    *entry = (struct io_uring_sqe){.opcode = IORING_OP_POLL_ADD, .fd = line[0], .poll32_events = POLLIN};
    *(unsigned *)(ring + parameters.sq_off.array) = 0;
    __atomic_store_n((unsigned *)(ring + parameters.sq_off.tail), 1, __ATOMIC_SEQ_CST);
    require(syscall(SYS_io_uring_enter, uring, 1, 0, 0, NULL, 0) == 1, "nothing was submitted");
}

int main(int argc, char **argv)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct sembuf up = {0, 1, 0};
    struct epoll_event event = {.events = EPOLLIN};
    char folder[] = "/tmp/waits.XXXXXX";
    pthread_t threads[KINDS];
    begin(argc, argv, 1);
    for (int index = 0; index < 2; index++) {
        require(socketpair(AF_UNIX, SOCK_STREAM, 0, pair[index]) == 0, "no sockets");
        setsockopt(pair[index][0], SOL_SOCKET, SO_RCVTIMEO, &minute, sizeof minute);
    }
    require(socketpair(AF_UNIX, SOCK_STREAM, 0, full) == 0, "no sockets");
    while (send(full[0], large, sizeof large, MSG_DONTWAIT) > 0)
        ;
    setsockopt(full[0], SOL_SOCKET, SO_SNDTIMEO, &minute, sizeof minute);
    listener = socket(AF_UNIX, SOCK_STREAM, 0);
    require(bind(listener, (struct sockaddr *)&address, sizeof(sa_family_t)) == 0 && listen(listener, 1) == 0, "no listener");
    socklen_t length = sizeof address;
    getsockname(listener, (struct sockaddr *)&address, &length);
    setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &minute, sizeof minute);
    require(mkdtemp(folder) != NULL, "no folder");
    watch = inotify_init1(IN_CLOEXEC);
    inotify_add_watch(watch, folder, IN_DELETE_SELF);
    semaphores = semget(IPC_PRIVATE, 1, 0600);
    queue = msgget(IPC_PRIVATE, 0600);
    require(semaphores >= 0 && queue >= 0 && pipe(line) == 0, "no semaphore or queue");
    while (msgsnd(queue, &message, sizeof message.text, IPC_NOWAIT) == 0)
        ;
    poller = epoll_create1(0);
    epoll_ctl(poller, EPOLL_CTL_ADD, line[0], &event);
    start_asynchronous();
    for (long kind = 0; kind < KINDS; kind++)
        require(pthread_create(&threads[kind], NULL, run, (void *)kind) == 0, "no thread");
    usleep(50000);
    say_text("blocking");
    read_line();
    require(write(line[1], "\n", 1) == 1 && write(pair[0][1], "x", 1) == 1 && write(pair[1][1], "x", 1) == 1, "write failed");
    int client = socket(AF_UNIX, SOCK_STREAM, 0);
    require(connect(client, (struct sockaddr *)&address, length) == 0, "connect failed");
    require(read(full[1], large, sizeof large) > 0, "read failed");
    rmdir(folder);
    semop(semaphores, &up, 1);
    require(msgrcv(queue, &message, sizeof message.text, 0, 0) > 0, "msgrcv failed");
    for (int kind = 0; kind < KINDS; kind++) {
        pthread_join(threads[kind], NULL);
        say(names[kind], results[kind]);
        say("errno", errors[kind]);
    }
    semctl(semaphores, 0, IPC_RMID);
    msgctl(queue, IPC_RMID, NULL);
    count("wait_here", KINDS);
    return end();
}
