// What a program learns about its handlers for faults is what it set: by sigaction and signal, before and after,
// for one time, in children that share its memory or copy it, and when it puts old ones back.
// long: 3000
#include "program.h"
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>

ASSEMBLY(load, "xor %eax, %eax\n mov %edi, %ecx\n mov (%rdi), %al\n add $1, %eax\n ret");
long load(const void *);

static volatile long first, second, plain, wrong;

static void step(void *context)
{
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    wrong += registers[REG_RIP] != (greg_t)load + 4;
    registers[REG_RIP] += 2;
}

static void on_first(int number, siginfo_t *info, void *context)
{
    first += number == SIGSEGV && info->si_addr == (void *)64;
    step(context);
}

static void on_second(int number, siginfo_t *info, void *context)
{
    second += number == SIGSEGV && info->si_addr == (void *)64;
    step(context);
}

static void on_plain(int number)
{
    plain += number == SIGFPE || number == SIGUSR1;
}

static volatile long queued;

static void on_queued(int number, siginfo_t *info, void *context)
{
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    queued += number == SIGFPE && info->si_code == FPE_INTDIV && info->si_addr == (void *)0x1234 && registers[REG_RIP];
}

/* As crash handlers do that pass on what they were told. */
static long queue_to_itself(void)
{
    struct sigaction action = {.sa_sigaction = on_queued, .sa_flags = SA_SIGINFO}, old;
    siginfo_t info = {.si_signo = SIGFPE, .si_code = FPE_INTDIV};
    info.si_addr = (void *)0x1234;
    sigaction(SIGFPE, &action, &old);
    long failed = syscall(SYS_rt_tgsigqueueinfo, getpid(), syscall(SYS_gettid), SIGFPE, &info);
    sigaction(SIGFPE, &old, NULL);
    return failed;
}

static void show(const char *name, const struct sigaction *action)
{
    long who = action->sa_handler == SIG_DFL ? 0 : action->sa_handler == SIG_IGN ? 1
             : action->sa_sigaction == on_first ? 2 : action->sa_sigaction == on_second ? 3
             : action->sa_handler == on_plain ? 4 : 99;
    say(name, who * 1000 + sigismember(&action->sa_mask, SIGTERM) * 100 + sigismember(&action->sa_mask, SIGHUP) * 10);
    say("flags", action->sa_flags);
}

static void query(int number)
{
    struct sigaction now;
    require(sigaction(number, NULL, &now) == 0, "no answer");
    show("now", &now);
}

static void change(int number, void (*handler)(int, siginfo_t *, void *), int flags, int masked)
{
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = flags}, old;
    sigemptyset(&action.sa_mask);
    if (masked)
        sigaddset(&action.sa_mask, masked);
    require(sigaction(number, &action, &old) == 0, "not set");
    show("old", &old);
    query(number);
}

static long in_child(int share)
{
    int status = 0;
    pid_t child = share ? vfork() : fork();
    if (child == 0) {
        struct sigaction ignored = {.sa_handler = SIG_IGN}, own = {.sa_sigaction = on_second, .sa_flags = SA_SIGINFO};
        sigaction(SIGFPE, &ignored, NULL);
        sigaction(SIGSEGV, &own, NULL);
        _exit(3);
    }
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_sigaction = on_first, .sa_flags = SA_SIGINFO | SA_RESTART}, old;
    sigaddset(&action.sa_mask, SIGTERM);
    sigaction(SIGSEGV, &action, NULL);
    signal(SIGFPE, on_plain);
    begin(argc, argv, 20);
    query(SIGSEGV);
    query(SIGFPE);
    query(SIGBUS);
    load((void *)64);
    change(SIGSEGV, on_second, SA_SIGINFO | SA_NODEFER, SIGHUP);
    load((void *)64);
    say("signal gives", signal(SIGFPE, SIG_IGN) == on_plain);
    query(SIGFPE);
    say("signal gives", signal(SIGFPE, on_plain) == SIG_IGN);
    query(SIGFPE);
    raise(SIGFPE);
    change(SIGBUS, (void (*)(int, siginfo_t *, void *))(void *)SIG_IGN, 0, 0);
    change(SIGUSR1, (void (*)(int, siginfo_t *, void *))(void *)on_plain, SA_RESETHAND, SIGHUP);
    raise(SIGUSR1);
    query(SIGUSR1);
    change(SIGSEGV, on_first, SA_SIGINFO | (int)SA_RESETHAND, 0);
    load((void *)64);
    query(SIGSEGV);
    say("fails", sigaction(SIGKILL, &action, NULL) == -1);
    say("fails", sigaction(1000, &action, &old) == -1);
    for (long turn = 0; turn < size; turn++) { /* each puts the other's handler back */
        action.sa_sigaction = turn % 2 ? on_first : on_second;
        sigaction(SIGSEGV, &action, &old);
        load((void *)64);
        if (turn % 3 == 0) {
            sigaction(SIGSEGV, &old, &action);
            require(action.sa_sigaction == (turn % 2 ? on_first : on_second), "another handler came back");
            sigaction(SIGSEGV, &action, NULL);
            load((void *)64);
        }
    }
    query(SIGSEGV);
    say("failed", queue_to_itself());
    say("queued", queued);
    say("child", in_child(1));
    say("child", in_child(0));
    query(SIGSEGV);
    query(SIGFPE);
    char *words[] = {"true", NULL};
    pid_t pid;
    int status = posix_spawnp(&pid, "true", NULL, NULL, words, NULL);
    waitpid(pid, &status, 0);
    say("spawned", status);
    query(SIGSEGV);
    say("first", first);
    say("second", second);
    say("plain", plain);
    say("wrong", wrong);
    count("load", 3 + size + (size + 2) / 3);
    return end();
}
