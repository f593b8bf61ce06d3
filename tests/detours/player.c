// Plays the target for detour buffers: maps what it is told to, puts code there, and runs it as it is told to.
//
// It reads one command a line and answers each with one line. player.py speaks with it. Its argument is the
// number of the file of the shared memory.
//
//     shared ADDRESS SIZE OFFSET       map a part of the shared memory
//     private ADDRESS SIZE wipe|keep   map private memory; `wipe`: all zero in forked children
//     poke ADDRESS HEX                 write there
//     peek ADDRESS SIZE                answers with HEX
//     executable ADDRESS SIZE          make readable and executable
//     writable ADDRESS SIZE            make readable and writable again
//     protect ADDRESS SIZE             make inaccessible
//     call TARGET R*17                 run from registers rax rcx rdx rbx rsp rbp rsi rdi r8 .. r15 and flags; the
//                                      return address is put at rsp. Answers with the registers at the return, and
//                                      whether the 128 bytes below rsp and all vector state were kept
//     hammer TARGET THREADS COUNT      call from several threads; answers with their tids
//     churn TARGET ROUNDS THREADS      threads that call once and end, one round after the other
//     fork TARGET COUNT THREADS        a child hammers; answers with its pid
//     vfork TARGET COUNT               a child of vfork calls; answers with its pid
//     signals TARGET COUNT             call while a timer's handler calls, too; answers with the handler's calls
//     time TARGET COUNT                answers with picoseconds a call, of the fastest of 200 times
//     name NAME                        rename this thread
//     tids                             answers with pid and tid
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t u64;
typedef u64 function(u64, u64, u64, u64, u64, u64);
enum { REGISTERS = 17, RED_ZONE = 128 };

u64 play_registers[REGISTERS], play_target, play_return, play_own_stack;
static unsigned char before[4096] __attribute__((aligned(64)));
unsigned char play_state[4096] __attribute__((aligned(64)));

// Loads all registers, jumps to the target with a return address on its stack, stores all registers.
__asm__(".text\n"
        "play:\n"
        "  push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n pushf\n"
        "  mov %rsp, play_own_stack(%rip)\n"
        "  mov $0xe7, %eax\n xor %edx, %edx\n lea play_state(%rip), %rcx\n xrstor64 (%rcx)\n"
        "  lea play_registers(%rip), %rbx\n"
        "  mov 32(%rbx), %rsp\n"
        "  lea 1f(%rip), %rax\n mov %rax, (%rsp)\n"
        "  mov 0(%rbx), %rax\n mov 8(%rbx), %rcx\n mov 16(%rbx), %rdx\n mov 40(%rbx), %rbp\n"
        "  mov 48(%rbx), %rsi\n mov 56(%rbx), %rdi\n mov 64(%rbx), %r8\n mov 72(%rbx), %r9\n"
        "  mov 80(%rbx), %r10\n mov 88(%rbx), %r11\n mov 96(%rbx), %r12\n mov 104(%rbx), %r13\n"
        "  mov 112(%rbx), %r14\n mov 120(%rbx), %r15\n"
        "  lea 128(%rbx), %rsp\n popf\n mov -104(%rsp), %rsp\n" // flags; then rsp from play_registers[4]
        "  mov play_registers+24(%rip), %rbx\n"
        "  jmp *play_target(%rip)\n"
        "1: mov %rbx, play_registers+24(%rip)\n"
        "  lea play_registers(%rip), %rbx\n"
        "  mov %rsp, 32(%rbx)\n"
        "  mov %rax, 0(%rbx)\n mov %rcx, 8(%rbx)\n mov %rdx, 16(%rbx)\n mov %rbp, 40(%rbx)\n"
        "  mov %rsi, 48(%rbx)\n mov %rdi, 56(%rbx)\n mov %r8, 64(%rbx)\n mov %r9, 72(%rbx)\n"
        "  mov %r10, 80(%rbx)\n mov %r11, 88(%rbx)\n mov %r12, 96(%rbx)\n mov %r13, 104(%rbx)\n"
        "  mov %r14, 112(%rbx)\n mov %r15, 120(%rbx)\n"
        "  mov play_own_stack(%rip), %rsp\n"
        "  pushf\n pop 128(%rbx)\n cld\n"
        "  mov $0xe7, %eax\n xor %edx, %edx\n lea play_state(%rip), %rcx\n xsave64 (%rcx)\n"
        "  popf\n pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n ret\n");
void play(void);

static u64 next(void)
{
    char *word = strtok(NULL, " \n");
    return word ? strtoull(word, NULL, 0) : 0;
}

// Every component holds something that is not its initial value.
static void prepare_state(void)
{
    static u64 seed = 88172645463325252u;
    __asm__ volatile("xsave64 (%0)" : : "r"(play_state), "a"(0xe7), "d"(0) : "memory");
    for (unsigned i = 160; i < 416; i += 8) { // xmm
        seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
        memcpy(play_state + i, &seed, 8);
    }
    for (unsigned i = 576; i < 2696 && i < sizeof play_state; i += 8) { // ymm, masks, zmm
        seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
        memcpy(play_state + i, &seed, 8);
    }
    u64 available;
    __asm__ volatile("xgetbv" : "=a"(available) : "c"(0) : "rdx");
    available &= 0xe7;
    memcpy(play_state + 512, &available, 8);
    *(uint32_t *)(play_state + 24) = 0x1fa0 ^ 0x8000;                    // mxcsr: flush to zero, a sticky flag
    *(uint16_t *)(play_state + 0) = 0x27f;                               // x87: double precision
    memcpy(before, play_state, sizeof before);
    __asm__ volatile("xrstor64 (%0); xsave64 (%0)" : : "r"(before), "a"(0xe7), "d"(0) : "memory");
    memset(play_state + 416, 0, 96);
    memset(before + 416, 0, 96);
}

static void call(void)
{
    unsigned char pattern[RED_ZONE];
    play_target = next();
    for (int i = 0; i < REGISTERS; i++)
        play_registers[i] = next();
    unsigned char *zone = (unsigned char *)play_registers[4] - RED_ZONE;
    for (int i = 0; i < RED_ZONE; i++)
        zone[i] = pattern[i] = 3 * i + 1;
    prepare_state();
    play();
    memset(play_state + 416, 0, 96);
    for (int i = 0; i < REGISTERS; i++)
        printf("%#lx ", play_registers[i]);
    printf("%d %d\n", memcmp(pattern, zone, RED_ZONE) == 0, memcmp(before, play_state, sizeof before) == 0);
}

static function *hammered;
static u64 hammered_count;
static pthread_barrier_t barrier;

static void repeat(function *target, u64 count)
{
    for (u64 i = 0; i < count; i++)
        target(i, 2, 3, 4, 5, 6);
}

static void *hammer(void *tid)
{
    *(pid_t *)tid = gettid();
    pthread_barrier_wait(&barrier);
    repeat(hammered, hammered_count);
    return NULL;
}

static void hammer_from(u64 threads, pid_t *tids)
{
    pthread_t thread[256];
    pthread_barrier_init(&barrier, NULL, threads);
    for (u64 i = 0; i < threads; i++)
        pthread_create(&thread[i], NULL, hammer, &tids[i]);
    for (u64 i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    pthread_barrier_destroy(&barrier);
}

static volatile sig_atomic_t handled;
static void on_alarm(int number)
{
    (void)number;
    handled++;
    hammered(1, 2, 3, 4, 5, 6);
}

static void with_signals(void)
{
    hammered = (function *)next();
    u64 count = next();
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART}, none = {.sa_handler = SIG_IGN};
    struct itimerval fast = {{0, 50}, {0, 50}}, never = {{0, 0}, {0, 0}};
    handled = 0;
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &fast, NULL);
    repeat(hammered, count);
    setitimer(ITIMER_REAL, &never, NULL);
    sigaction(SIGALRM, &none, NULL);
    printf("%d\n", handled);
}

static u64 nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static int digit(char letter) { return letter <= '9' ? letter - '0' : letter - 'a' + 10; }

static void hex(unsigned char *place, const char *digits)
{
    for (; digits && digits[0] && digits[1]; digits += 2)
        *place++ = digit(digits[0]) << 4 | digit(digits[1]);
}

int main(int count, char **words)
{
    int shared = count > 1 ? atoi(words[1]) : -1;
    static char line[1 << 20];
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        char *command = strtok(line, " \n");
        pid_t tids[256] = {0};
        if (!command)
            continue;
        if (!strcmp(command, "shared")) {
            u64 address = next(), size = next(), offset = next();
            void *place = mmap((void *)address, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, shared, offset);
            printf("%d\n", place == (void *)address);
        } else if (!strcmp(command, "private")) {
            u64 address = next(), size = next();
            char *wipe = strtok(NULL, " \n");
            void *place = mmap((void *)address, size, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
            if (!strcmp(wipe, "wipe"))
                madvise(place, size, MADV_WIPEONFORK);
            printf("%d\n", place == (void *)address);
        } else if (!strcmp(command, "poke")) {
            unsigned char *place = (unsigned char *)next();
            hex(place, strtok(NULL, " \n"));
            puts("done");
        } else if (!strcmp(command, "peek")) {
            unsigned char *place = (unsigned char *)next();
            u64 size = next();
            for (u64 i = 0; i < size; i++)
                printf("%02x", place[i]);
            puts("");
        } else if (!strcmp(command, "executable")) {
            u64 address = next();
            printf("%d\n", mprotect((void *)address, next(), PROT_READ | PROT_EXEC));
        } else if (!strcmp(command, "writable")) {
            u64 address = next();
            printf("%d\n", mprotect((void *)address, next(), PROT_READ | PROT_WRITE));
        } else if (!strcmp(command, "protect")) {
            u64 address = next();
            printf("%d\n", mprotect((void *)address, next(), PROT_NONE));
        } else if (!strcmp(command, "call")) {
            call();
        } else if (!strcmp(command, "hammer")) {
            hammered = (function *)next();
            u64 threads = next();
            hammered_count = next();
            hammer_from(threads, tids);
            for (u64 i = 0; i < threads; i++)
                printf("%d ", tids[i]);
            puts("");
        } else if (!strcmp(command, "churn")) {
            hammered = (function *)next();
            u64 rounds = next(), threads = next();
            hammered_count = 1;
            while (rounds--)
                hammer_from(threads, tids);
            puts("done");
        } else if (!strcmp(command, "fork")) {
            hammered = (function *)next();
            hammered_count = next();
            u64 threads = next();
            pid_t child = fork();
            if (child == 0) {
                repeat(hammered, hammered_count);
                if (threads)
                    hammer_from(threads, tids);
                _exit(0);
            }
            int status;
            waitpid(child, &status, 0);
            printf("%d %d\n", child, status);
        } else if (!strcmp(command, "vfork")) {
            hammered = (function *)next();
            u64 count = next();
            pid_t child = vfork();
            if (child == 0) {
                repeat(hammered, count);
                _exit(0);
            }
            int status;
            waitpid(child, &status, 0);
            printf("%d %d\n", child, status);
        } else if (!strcmp(command, "signals")) {
            with_signals();
        } else if (!strcmp(command, "time")) {
            function *target = (function *)next();
            u64 count = next(), best = -1;
            for (int i = 0; i < 200; i++) {
                u64 start = nanoseconds();
                repeat(target, count);
                u64 spent = nanoseconds() - start;
                best = spent < best ? spent : best;
            }
            printf("%lu\n", best * 1000 / count);
        } else if (!strcmp(command, "name")) {
            prctl(PR_SET_NAME, strtok(NULL, "\n"));
            puts("done");
        } else if (!strcmp(command, "tids")) {
            printf("%d %d\n", getpid(), gettid());
        } else {
            puts("what?");
        }
    }
    return 0;
}
