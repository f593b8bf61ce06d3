/* The process that the measurements probe.

       victim [LIBRARY]

   It reads commands from standard input, answers each with lines of words, and ends the answer with "done". It
   ends with its input, and dies with whoever started it. FUNCTION is one of the table below, or one of LIBRARY.

       address FUNCTION                 its run-time address (of a floor: of its loop)
       run FUNCTION CALLS BATCHES       calls it: a line for each batch: nanoseconds, a checksum of the results
       together FUNCTION CALLS THREADS  THREADS threads call it CALLS times each: nanoseconds for all
       pace FUNCTION CALLS MS THREADS   each millisecond CALLS calls, by each of THREADS threads: nanoseconds
       first FUNCTION                   calls it until its code changes: CLOCK_MONOTONIC then, in nanoseconds
       all                              calls every function of LIBRARY once: a checksum of the results
       sleepers COUNT                   starts COUNT threads that wake up each millisecond
       spin                             starts a thread that does nothing but look at the clock: its tid
       gap                              nanoseconds: the longest that thread did not run since the last `gap`
       stare MS                         looks at the clock itself for so long: nanoseconds, the longest gap

   The functions that are measured are in assembly, so that every compiler makes the same ones. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define FUNCTION(name, body)                                                                                      \
    uint64_t name(uint64_t first, uint64_t second);                                                               \
    __asm__(".pushsection .text\n.balign 16\n.globl " #name "\n.type " #name ", @function\n" #name ":\n"          \
            ".cfi_startproc\n" body "\n.cfi_endproc\n.size " #name ", . - " #name "\n.popsection\n")

#define MIX "add %rsi, %rax\nmov %rax, %rdx\nshr $9, %rdx\nxor %rdx, %rax\n"

/* Starts as most functions do. The kernel can emulate a push, so this is its fast case. */
FUNCTION(work, "push %rbx\nmov %rdi, %rbx\nimul $37, %rdi, %rax\n" MIX "add %rbx, %rax\npop %rbx\nret");
/* The kernel must step over a lea. */
FUNCTION(work_lea, "lea (%rdi,%rdi,2), %rax\n" MIX "lea (%rax,%rdi,4), %rax\nret");
/* The probe sits on the instruction at work_middle_at. */
FUNCTION(work_middle, "imul $37, %rdi, %rax\n" MIX ".globl work_middle_at\nwork_middle_at:\n"
                      "xor $0x55, %rax\nadd $0x1234, %rax\nadd %rdi, %rax\nret");
/* Its first argument is a text. */
FUNCTION(work_text, "push %rbx\nmov %rdi, %rbx\nmovzbl (%rdi), %eax\n" MIX "lea (%rax,%rsi,4), %rax\npop %rbx\nret");

extern char work_middle_at[];

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

#define CALLS(name, argument)                                                                                     \
    static uint64_t call_##name(uint64_t calls)                                                                   \
    {                                                                                                             \
        uint64_t sum = 0;                                                                                         \
        for (uint64_t call = 0; call < calls; call++)                                                             \
            sum += name((uint64_t)(argument), sum);                                                               \
        return sum;                                                                                               \
    }

CALLS(work, call)
CALLS(work_lea, call)
CALLS(work_middle, call)
CALLS(work_text, "a text of twenty-six bytes")

static uint64_t call_malloc(uint64_t calls)
{
    for (uint64_t call = 0; call < calls; call++) {
        void *block = malloc(64);
        __asm__ volatile("" : : "r"(block) : "memory");
        free(block);
    }
    return calls;
}

/* What the handlers of handlers.py do, written in C: `work` with that before it. */

#define SLOTS 2048
#define HASHED 1000
#define RING (1 << 16)

static __thread uint64_t c_count, c_buckets[65];
static _Atomic uint64_t c_keys[SLOTS], c_values[SLOTS];
static __thread uint64_t c_ring[RING / 8], c_head;

__attribute__((noinline)) static void c_counter(uint64_t first) { (void)first, c_count++; }

__attribute__((noinline)) static void c_histogram(uint64_t first)
{
    c_buckets[first ? 64 - __builtin_clzll(first) : 0]++;
}

__attribute__((noinline)) static void c_hash(uint64_t first)
{
    uint64_t key = first % HASHED + 1;
    for (uint64_t slot = key * 0x9E3779B97F4A7C15u >> 53;; slot = (slot + 1) % SLOTS) {
        uint64_t found = atomic_load_explicit(&c_keys[slot], memory_order_relaxed);
        if (found == 0 && atomic_compare_exchange_strong(&c_keys[slot], &found, key))
            found = key;
        if (found == key) {
            atomic_fetch_add(&c_values[slot], 1);
            return;
        }
    }
}

/* Head, time, thread and three fields, as in the rings. */
__attribute__((noinline)) static void c_event(uint64_t first)
{
    uint64_t *record = &c_ring[c_head / 8 % (RING / 8 - 8)];
    c_head += 48;
    record[1] = __builtin_ia32_rdtsc();
    record[2] = (uintptr_t)__builtin_thread_pointer();
    record[3] = first;
    record[4] = first * 2;
    record[5] = 7;
    *(volatile uint64_t *)record = 1;
}

__attribute__((noinline)) static void c_filter(uint64_t first)
{
    if (first > (uint64_t)1 << 60)
        c_event(first);
}

#define WITH(name)                                                                                                \
    static uint64_t call_##name(uint64_t calls)                                                                   \
    {                                                                                                             \
        uint64_t sum = 0;                                                                                         \
        for (uint64_t call = 0; call < calls; call++) {                                                           \
            name(call);                                                                                           \
            __asm__ volatile("" : : : "memory");                                                                  \
            sum += work(call, sum);                                                                               \
        }                                                                                                         \
        return sum;                                                                                               \
    }

WITH(c_counter)
WITH(c_histogram)
WITH(c_hash)
WITH(c_event)
WITH(c_filter)

/* Floors: what the machine takes for the instructions that no probe of the kind can do without. */

static uint64_t memory[64] __attribute__((aligned(64)));

#define FLOOR(name, instructions)                                                                                 \
    static uint64_t floor_##name(uint64_t times)                                                                  \
    {                                                                                                             \
        uint64_t left = times;                                                                                    \
        __asm__ volatile(".balign 32\n1:\n" instructions "\ndec %0\njnz 1b"                                       \
                         : "+r"(left)                                                                             \
                         : "r"(memory)                                                                            \
                         : "rax", "rcx", "rdx", "cc", "memory");                                                  \
        return times;                                                                                             \
    }

#define RESERVE(lock) "mov (%1), %%rax\nlea 40(%%rax), %%rdx\n" lock "cmpxchg %%rdx, (%1)\n"

FLOOR(nothing, "")
FLOOR(lock_inc, "lock incq (%1)")
FLOOR(lock_cmpxchg, RESERVE("lock "))
FLOOR(cmpxchg, RESERVE(""))
FLOOR(rdtsc, "rdtsc")
/* A place, the time, the thread and two arguments: the least an event with these can be. */
FLOOR(event, RESERVE("") "and $63, %%eax\nmov %%rax, 128(%1)\nrdtsc\nshl $32, %%rdx\nor %%rdx, %%rax\n"
                         "mov %%rax, 136(%1)\nmov %%fs:0, %%rax\nmov %%eax, 144(%1)\nmov %%rdi, 152(%1)\n"
                         "mov %%rsi, 160(%1)\nincq 64(%1)")

typedef uint64_t Calls(uint64_t);

static const struct callable {
    const char *name;
    Calls *calls;
    void *address;
} table[] = {
    {"work", call_work, work},
    {"work_lea", call_work_lea, work_lea},
    {"work_middle", call_work_middle, work_middle},
    {"work_middle_at", call_work_middle, work_middle_at},
    {"work_text", call_work_text, work_text},
    {"malloc", call_malloc, malloc},
    {"c_counter", call_c_counter, work},
    {"c_histogram", call_c_histogram, work},
    {"c_hash", call_c_hash, work},
    {"c_event", call_c_event, work},
    {"c_filter", call_c_filter, work},
    {"floor_nothing", floor_nothing, floor_nothing},
    {"floor_lock_inc", floor_lock_inc, floor_lock_inc},
    {"floor_lock_cmpxchg", floor_lock_cmpxchg, floor_lock_cmpxchg},
    {"floor_cmpxchg", floor_cmpxchg, floor_cmpxchg},
    {"floor_rdtsc", floor_rdtsc, floor_rdtsc},
    {"floor_event", floor_event, floor_event},
};

static void *library;
static uint64_t (*of_library)(uint64_t, uint64_t);

static uint64_t call_of_library(uint64_t calls)
{
    uint64_t sum = 0;
    for (uint64_t call = 0; call < calls; call++)
        sum += of_library(call, sum);
    return sum;
}

static void fail(const char *what, const char *name)
{
    fprintf(stderr, "victim: %s: %s\n", what, name);
    exit(2);
}

static struct callable find(const char *name)
{
    for (size_t index = 0; index < sizeof table / sizeof *table; index++)
        if (!strcmp(table[index].name, name))
            return table[index];
    void *address = library ? dlsym(library, name) : NULL;
    if (address == NULL)
        fail("no such function", name);
    of_library = (uint64_t (*)(uint64_t, uint64_t))address;
    return (struct callable){name, call_of_library, address};
}

static void start(void *(*function)(void *), void *argument, pthread_t *thread)
{
    pthread_t ignored;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 256 << 10);
    if (pthread_create(thread ? thread : &ignored, &attributes, function, argument))
        fail("no thread", "pthread_create");
}

struct team {
    Calls *calls;
    uint64_t each, milliseconds;
    pthread_barrier_t barrier;
};

static void *member(void *argument)
{
    struct team *team = argument;
    pthread_barrier_wait(&team->barrier);
    if (team->milliseconds == 0)
        team->calls(team->each);
    uint64_t due = now();
    for (uint64_t turn = 0; turn < team->milliseconds; turn++) {
        team->calls(team->each);
        due += 1000000;
        struct timespec until = {(time_t)(due / 1000000000u), (long)(due % 1000000000u)};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    }
    return NULL;
}

static uint64_t together(const char *name, uint64_t each, uint64_t milliseconds, uint64_t count)
{
    enum { MOST = 256 };
    pthread_t threads[MOST];
    struct team team = {find(name).calls, each, milliseconds, {{0}}};
    if (count > MOST)
        fail("too many threads", name);
    pthread_barrier_init(&team.barrier, NULL, (unsigned)count + 1);
    for (uint64_t index = 0; index < count; index++)
        start(member, &team, &threads[index]);
    pthread_barrier_wait(&team.barrier);
    uint64_t began = now();
    for (uint64_t index = 0; index < count; index++)
        pthread_join(threads[index], NULL);
    return now() - began;
}

static uint64_t first(const char *name)
{
    struct callable function = find(name);
    volatile uint64_t *code = function.address;
    uint64_t before[2] = {code[0], code[1]};
    while (code[0] == before[0] && code[1] == before[1])
        function.calls(1);
    uint64_t changed = now();
    function.calls(1);
    return changed;
}

static void *sleeper(void *argument)
{
    for (;;) {
        struct timespec millisecond = {0, 1000000};
        nanosleep(&millisecond, NULL);
        call_work(10);
    }
    return argument;
}

static _Atomic uint64_t longest;
static _Atomic int spinner;

static void *spin(void *argument)
{
    spinner = gettid();
    for (uint64_t last = now();;) {
        uint64_t time = now();
        if (time - last > longest)
            longest = time - last;
        last = time;
    }
    return argument;
}

static uint64_t stare(uint64_t nanoseconds)
{
    uint64_t most = 0, last = now();
    for (uint64_t end = last + nanoseconds; last < end;) {
        uint64_t time = now();
        if (time - last > most)
            most = time - last;
        last = time;
    }
    return most;
}

static void obey(const char *line)
{
    char command[16] = "", name[64] = "";
    uint64_t number[3] = {0};
    sscanf(line, "%15s %63s %" SCNu64 " %" SCNu64 " %" SCNu64, command, name, &number[0], &number[1], &number[2]);
    if (!strcmp(command, "address"))
        printf("%" PRIuPTR "\n", (uintptr_t)find(name).address);
    else if (!strcmp(command, "run"))
        for (Calls *calls = find(name).calls; number[1] > 0; number[1]--) {
            uint64_t began = now(), sum = calls(number[0]);
            printf("%" PRIu64 " %" PRIx64 "\n", now() - began, sum);
        }
    else if (!strcmp(command, "together"))
        printf("%" PRIu64 "\n", together(name, number[0], 0, number[1]));
    else if (!strcmp(command, "pace"))
        printf("%" PRIu64 "\n", together(name, number[0], number[1], number[2]));
    else if (!strcmp(command, "first"))
        printf("%" PRIu64 "\n", first(name));
    else if (!strcmp(command, "all"))
        printf("%" PRIx64 "\n", ((uint64_t(*)(uint64_t))find("many_all").address)(7));
    else if (!strcmp(command, "sleepers"))
        for (long left = strtol(name, NULL, 10); left > 0; left--)
            start(sleeper, NULL, NULL);
    else if (!strcmp(command, "spin")) {
        start(spin, NULL, NULL);
        while (!spinner)
            usleep(100);
        printf("%d\n", spinner);
    } else if (!strcmp(command, "gap"))
        printf("%" PRIu64 "\n", atomic_exchange(&longest, 0));
    else if (!strcmp(command, "stare"))
        printf("%" PRIu64 "\n", stare(strtoull(name, NULL, 10) * 1000000u));
    else
        fail("no such command", line);
    puts("done");
}

int main(int count, char **words)
{
    char line[256];
    pid_t parent = getppid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        return 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (count > 1 && (library = dlopen(words[1], RTLD_NOW)) == NULL)
        fail("no such library", dlerror());
    while (fgets(line, sizeof line, stdin))
        obey(line);
    return 0;
}
