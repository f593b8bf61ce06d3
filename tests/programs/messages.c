// System V semaphores and message queues, flock and waitpid wait for a line; the first two are never restarted.
// blocks: line
#include "program.h"
#include <pthread.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/wait.h>

#define KINDS 3

struct message { long type; char text[8]; };

static int semaphores, queue, hold[2];
static pid_t child;
static long results[KINDS], errors[KINDS];

PROBED long wait_here(long kind)
{
    struct sembuf down = {0, -1, 0};
    struct message message;
    errno = 0;
    switch (kind) {
    case 0: return semop(semaphores, &down, 1);
    case 1: return msgrcv(queue, &message, sizeof message.text, 0, 0);
    default: return waitpid(child, NULL, 0) == child;
    }
}

static void *run(void *argument)
{
    long kind = (long)argument;
    results[kind] = wait_here(kind);
    errors[kind] = errno;
    return NULL;
}

int main(int argc, char **argv)
{
    static const char *const names[KINDS] = {"semop", "msgrcv", "waitpid"};
    struct sembuf up = {0, 1, 0};
    struct message message = {1, "hello"};
    char letter;
    begin(argc, argv, 1);
    pthread_t threads[KINDS];
    semaphores = semget(IPC_PRIVATE, 1, 0600);
    queue = msgget(IPC_PRIVATE, 0600);
    require(semaphores >= 0 && queue >= 0 && pipe(hold) == 0, "no semaphore or queue");
    if ((child = fork()) == 0) {
        close(hold[1]);
        _exit((int)read(hold[0], &letter, 1));
    }
    for (long kind = 0; kind < KINDS; kind++)
        require(pthread_create(&threads[kind], NULL, run, (void *)kind) == 0, "no thread");
    usleep(50000);
    say_text("blocking");
    read_line();
    semop(semaphores, &up, 1);
    msgsnd(queue, &message, sizeof message.text, 0);
    close(hold[1]);
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
