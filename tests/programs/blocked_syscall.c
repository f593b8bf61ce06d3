// Threads wait inside a system call instruction that a probe may cover or move; a signal interrupts one of them.
// blocks: line
#include "program.h"
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>

/* rdi = number, rsi.. = arguments: the system call stands in the function's first instructions. */
ASSEMBLY(call_system, "mov %edi, %eax\n mov %rsi, %rdi\n mov %rdx, %rsi\n mov %rcx, %rdx\n syscall\n ret");
ASSEMBLY(call_read, "xor %eax, %eax\n syscall\n mov %rax, %rcx\n mov %rcx, %rax\n ret");
long call_system(long number, long first, const void *second, long third);
long call_read(long descriptor, void *buffer, long bytes);

static int pipes[3][2];
static long results[3];
static volatile long interruptions;

static void handle(int number) { interruptions += number == SIGUSR1; }

static void *run(void *argument)
{
    long index = (long)argument;
    char letters[4] = {0};
    long got = index ? call_read(pipes[index][0], letters, 4) : call_system(SYS_read, pipes[0][0], letters, 4);
    results[index] = got;
    return NULL;
}

int main(int argc, char **argv)
{
    struct sigaction restarting = {.sa_handler = handle, .sa_flags = SA_RESTART}, plain = {.sa_handler = handle};
    sigaction(SIGUSR1, &restarting, NULL);
    sigaction(SIGUSR2, &plain, NULL);
    begin(argc, argv, 1);
    pthread_t threads[3];
    for (long index = 0; index < 3; index++) {
        require(pipe(pipes[index]) == 0, "no pipe");
        require(pthread_create(&threads[index], NULL, run, (void *)index) == 0, "no thread");
    }
    usleep(50000);
    say_text("blocking");
    read_line();
    pthread_kill(threads[1], SIGUSR1); // goes on waiting
    while (interruptions < 1)
        usleep(1000);
    pthread_kill(threads[2], SIGUSR2); // returns -EINTR
    pthread_join(threads[2], NULL);
    for (int index = 0; index < 2; index++) {
        require(write(pipes[index][1], "xy", 2) == 2, "write failed");
        pthread_join(threads[index], NULL);
    }
    for (int index = 0; index < 3; index++)
        say("returned", results[index]);
    count("call_system", 1);
    count("call_read", 2);
    return end();
}
