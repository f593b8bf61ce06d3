// Runs pieces of machine code from chosen register and memory contents and reports the state they end in.
//
//     execute CASES RESULTS
//
// CASES holds, in the order of the structs below: a header, the initial contents of the memory area, the cases,
// the bytes of all code. Each case is run twice (two start addresses, two sets of registers). A run ends at its
// first signal; code areas are full of int3, so that whatever leaves the code ends there. Three pieces of code are
// in place for both runs, the fourth is put over them for the second one. RESULTS gets one record a case. execution.py writes and reads these files.
//
// Everything happens in the signal handler: it notes how a run ended, and changes the interrupted context so that
// returning from the handler starts the next run.
#define _GNU_SOURCE
#include <cpuid.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

enum { REGISTERS = 17, CODES = 4, REPLACEMENT = 3, POKES = 4, STATE_SIZE = 4096, EMPTY_PIPE = 100 };

struct header {
    uint64_t case_count;
    uint64_t code_areas[2]; // addresses; each is filled with int3
    uint64_t code_area_size;
    uint64_t memory; // data and stack; what a run changes in it is compared
    uint64_t memory_size;
};

struct run {
    uint64_t start;
    uint64_t registers[REGISTERS]; // rax rcx rdx rbx rsp rbp rsi rdi r8 .. r15, flags
};

struct test_case {
    struct {
        uint64_t address, offset, size; // of the bytes behind the cases
    } code[CODES];
    struct run runs[2];
    struct {
        uint64_t address, value;
    } pokes[POKES]; // written into the memory area before each run; address 0: none
    uint64_t seed;  // of the vector and x87 registers
    uint64_t alarm; // microseconds after which SIGALRM ends a run, 0: no such alarm
};

struct end {
    int64_t signal, code;
    uint64_t fault_address, trap, error, ip;
    uint64_t registers[REGISTERS];
};

struct result {
    struct end ends[2];
    uint64_t vector_difference; // a bit for each component of the extended state (xsave's numbers)
    uint64_t first_difference, last_difference; // addresses in the memory area, 0: none
};

static const int ORDER[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                              REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

static const struct header *header;
static const struct test_case *cases;
static const unsigned char *memory_contents, *bytes;
static struct result *results;
static unsigned char *writable_areas[2];
static unsigned char *memory_after_first;
static unsigned char state_after_first[STATE_SIZE];
static uint64_t current, which;
static int started;
static uint64_t alarms_for, alarms;

// Extended state: x87 and SSE at fixed places, the others where cpuid says.
static struct {
    unsigned offset, size;
} components[10];

static uint64_t random_state;
static uint64_t random64(void)
{
    uint64_t x = random_state += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

// Vector contents that arithmetic finds interesting: raw bits, small integers, floats and doubles near 1.
static void fill(unsigned char *place, unsigned size)
{
    for (unsigned i = 0; i < size; i += 8) {
        uint64_t value = random64();
        double number = (double)(int64_t)value / 1e18;
        float pair[2] = {(float)number, (float)(value & 1023)};
        switch (value >> 61) {
        case 0: value &= 0x00ff00ff00ff00ff; break;
        case 1: value &= 0x7f; break;
        case 2: memcpy(&value, &number, 8); break;
        case 3: memcpy(&value, pair, 8); break;
        case 4: value |= 0x8000000080000000; break;
        default: break;
        }
        memcpy(place + i, &value, size - i < 8 ? size - i : 8);
    }
}

static uint64_t *features_of(unsigned char *state) { return (uint64_t *)(state + 512); }
static uint64_t offered(unsigned char *state) { return *(uint64_t *)(state + 464 + 8); }

static void set_state(unsigned char *state, uint64_t seed)
{
    random_state = seed;
    uint64_t mxcsr = 0x1f80 | (random64() & 7 ? 0 : 0x8040);
    *(uint16_t *)(state + 0) = 0x37f;
    *(uint16_t *)(state + 2) = (random64() & 7) << 11;
    state[4] = random64();
    memset(state + 6, 0, 18);
    *(uint32_t *)(state + 24) = mxcsr;
    for (int i = 0; i < 8; i++) {
        uint64_t mantissa = random64() | 1ull << 63;
        uint16_t exponent = (0x3fff - 20 + random64() % 40) | (random64() & 1) << 15;
        memcpy(state + 32 + 16 * i, &mantissa, 8);
        memcpy(state + 32 + 16 * i + 8, &exponent, 2);
    }
    fill(state + 160, 256);
    uint64_t wanted = offered(state) & 0xe7;
    *features_of(state) |= wanted | 3;
    for (int i = 2; i < 8; i++)
        if (wanted >> i & 1)
            fill(state + components[i].offset, components[i].size);
}

// What a program can tell of one component; the address of the last x87 instruction is left out.
static int component_differs(unsigned char *one, unsigned char *other, int i)
{
    static const unsigned char zero[2048];
    if (i == 0) {
        unsigned char a[160], b[160];
        memcpy(a, one, 160);
        memcpy(b, other, 160);
        memset(a + 8, 0, 8);
        memset(b + 8, 0, 8);
        return memcmp(a, b, 160) != 0;
    }
    unsigned offset = i == 1 ? 160 : components[i].offset, size = i == 1 ? 256 : components[i].size;
    const unsigned char *a = *features_of(one) >> i & 1 ? one + offset : zero;
    const unsigned char *b = *features_of(other) >> i & 1 ? other + offset : zero;
    return memcmp(a, b, size) != 0;
}

// Code is written through a second mapping: what a run stores into it must fault, or it would last.
static unsigned char *writable(uint64_t address)
{
    for (int i = 0; i < 2; i++)
        if (address - header->code_areas[i] < header->code_area_size)
            return writable_areas[i] + (address - header->code_areas[i]);
    _exit(4);
}

static void put_code(const struct test_case *test, int i)
{
    memcpy(writable(test->code[i].address), bytes + test->code[i].offset, test->code[i].size);
}

static void remove_code(const struct test_case *test)
{
    for (int i = 0; i < CODES; i++)
        memset(writable(test->code[i].address), 0xcc, test->code[i].size);
}

static void start(ucontext_t *context)
{
    const struct test_case *test = &cases[current];
    const struct run *run = &test->runs[which];
    greg_t *registers = context->uc_mcontext.gregs;
    memcpy((void *)header->memory, memory_contents, header->memory_size);
    for (int i = 0; i < POKES; i++)
        if (test->pokes[i].address)
            *(uint64_t *)test->pokes[i].address = test->pokes[i].value;
    if (which == 1)
        put_code(test, REPLACEMENT);
    else
        for (int i = 0; i < REPLACEMENT; i++)
            put_code(test, i);
    for (int i = 0; i < 16; i++)
        registers[ORDER[i]] = run->registers[i];
    registers[REG_EFL] = run->registers[16];
    registers[REG_RIP] = run->start;
    set_state((unsigned char *)context->uc_mcontext.fpregs, test->seed);
    struct itimerval once = {{0, 0}, {0, test->alarm}};
    if (test->alarm)
        setitimer(ITIMER_REAL, &once, NULL);
}

static void finish(int number, siginfo_t *info, ucontext_t *context)
{
    struct result *result = &results[current];
    struct end *end = &result->ends[which];
    greg_t *registers = context->uc_mcontext.gregs;
    unsigned char *state = (unsigned char *)context->uc_mcontext.fpregs;
    const unsigned char *memory = (const unsigned char *)header->memory;
    end->signal = number;
    end->code = info->si_code;
    end->fault_address = number == SIGVTALRM || number == SIGALRM ? 0 : (uint64_t)info->si_addr;
    end->trap = registers[REG_TRAPNO];
    end->error = registers[REG_ERR];
    end->ip = registers[REG_RIP];
    for (int i = 0; i < 16; i++)
        end->registers[i] = registers[ORDER[i]];
    end->registers[16] = registers[REG_EFL];
    if (which == 0) {
        memcpy(state_after_first, state, *(uint32_t *)(state + 464 + 16)); // xstate_size
        memcpy(memory_after_first, memory, header->memory_size);
        return;
    }
    for (int i = 0; i < 8; i++)
        if ((i < 2 || (components[i].size && offered(state) >> i & 1)) &&
            component_differs(state_after_first, state, i))
            result->vector_difference |= 1u << i;
    if (memcmp(state_after_first + 24, state + 24, 4) != 0)
        result->vector_difference |= 2;
    if (memcmp(memory_after_first, memory, header->memory_size) == 0)
        return;
    uint64_t first = 0, last = header->memory_size - 1;
    while (memory_after_first[first] == memory[first])
        first++;
    while (memory_after_first[last] == memory[last])
        last--;
    result->first_difference = header->memory + first;
    result->last_difference = header->memory + last;
}

static void handler(int number, siginfo_t *info, void *argument)
{
    ucontext_t *context = argument;
    if (number == SIGVTALRM) { // a run that is still the same one at the third alarm goes on for ever
        uint64_t now = current * 2 + which + 1;
        alarms = now == alarms_for ? alarms + 1 : 0;
        alarms_for = now;
        if (alarms < 2)
            return;
        alarms = 0;
    }
    if (started) {
        finish(number, info, context);
        if (which == 1)
            remove_code(&cases[current]);
        current += which;
        which ^= 1;
    }
    started = 1;
    if (current == header->case_count)
        _exit(0);
    start(context);
}

static void area(uint64_t address, uint64_t size, int protection, int file)
{
    int flags = MAP_SHARED | MAP_FIXED_NOREPLACE | (file < 0 ? MAP_ANONYMOUS : 0);
    if (mmap((void *)address, size, protection, flags, file, 0) != (void *)address) {
        perror("mmap of an area");
        exit(2);
    }
}

static void code_area(int i)
{
    uint64_t size = header->code_area_size;
    int file = memfd_create("code", 0);
    if (file < 0 || ftruncate(file, size) < 0) {
        perror("memfd_create");
        exit(2);
    }
    writable_areas[i] = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    memset(writable_areas[i], 0xcc, size);
    area(header->code_areas[i], size, PROT_READ | PROT_EXEC, file);
    close(file);
}

static void *whole_file(const char *path, uint64_t *size)
{
    struct stat status;
    int file = open(path, O_RDONLY);
    if (file < 0 || fstat(file, &status) < 0) {
        perror(path);
        exit(2);
    }
    *size = status.st_size;
    return mmap(NULL, status.st_size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file, 0);
}

int main(int count, char **words)
{
    static unsigned char alternate[1 << 18];
    static const int SIGNALS[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGVTALRM, SIGALRM};
    uint64_t size;
    if (count != 3)
        return 2;
    const unsigned char *input = whole_file(words[1], &size);
    header = (const struct header *)input;
    memory_contents = input + sizeof *header;
    cases = (const struct test_case *)(memory_contents + header->memory_size);
    bytes = (const unsigned char *)(cases + header->case_count);

    int file = open(words[2], O_RDWR | O_CREAT | O_TRUNC, 0600);
    uint64_t results_size = header->case_count * sizeof *results;
    if (file < 0 || ftruncate(file, results_size) < 0) {
        perror(words[2]);
        return 2;
    }
    results = mmap(NULL, results_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    memory_after_first = malloc(header->memory_size);
    for (int i = 0; i < 2; i++)
        code_area(i);
    area(header->memory, header->memory_size, PROT_READ | PROT_WRITE, -1);
    for (unsigned i = 2; i < 10; i++) {
        unsigned a, b, c, d;
        if (__get_cpuid_count(0xd, i, &a, &b, &c, &d) && a && b + a <= STATE_SIZE) {
            components[i].size = a;
            components[i].offset = b;
        }
    }

    // A pipe without data, for system calls that block.
    int ends[2];
    if (pipe(ends) < 0 || dup2(ends[0], EMPTY_PIPE) < 0)
        return 2;
    stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};
    sigaltstack(&stack, NULL);
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    sigfillset(&action.sa_mask);
    for (unsigned i = 0; i < sizeof SIGNALS / sizeof *SIGNALS; i++)
        sigaction(SIGNALS[i], &action, NULL);
    struct itimerval interval = {{0, 20000}, {0, 20000}}; // of processor time
    setitimer(ITIMER_VIRTUAL, &interval, NULL);
    __asm__ volatile("int3");
    return 3;
}
