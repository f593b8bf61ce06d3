/* What every program in this folder shares.

       PROGRAM [SIZE] [wait]

   SIZE is how much work it does; each program has a small default. With `wait` it prints "ready" and reads a line
   before it starts, and prints "done" and reads a line before it exits, so that a controller can come and go.

   Output is written line by line with write(2) and without the C library's own functions, which may be probed:

       NAME NUMBER                  a result: the same in every run
       count NUMBER FUNCTION        FUNCTION ran NUMBER times, in all processes together
       count_launched NUMBER FUNCTION   it ran NUMBER times more before the first wait
       varying NUMBER FUNCTION      the same, but NUMBER differs between runs
       count_by_pid PID NUMBER FUNCTION

   FUNCTION may be MODULE:FUNCTION for one outside the program; then NUMBER is for the time between the two waits. */

#ifndef PROGRAM_H
#define PROGRAM_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

/* A function with its own symbol and nothing but the plain calling convention. */
#define PROBED __attribute__((noipa, used))
#define UNUSED __attribute__((unused))

/* A function in assembly. BODY is lines of AT&T syntax. */
#define ASSEMBLY(name, body)                                                                                     \
    __asm__(".pushsection .text\n.balign 16\n.globl " #name "\n.type " #name ", @function\n" #name ":\n"         \
            ".cfi_startproc\n" body "\n.cfi_endproc\n.size " #name ", . - " #name "\n.popsection\n")

static long size;
static int waits;

static char *put_text(char *at, const char *text)
{
    const volatile char *from = text;
    while (*from)
        *at++ = *from++;
    return at;
}

static char *put_number(char *at, long number)
{
    char digits[24];
    int count = 0;
    unsigned long rest = number < 0 ? -(unsigned long)number : (unsigned long)number;
    if (number < 0)
        *at++ = '-';
    do
        digits[count++] = (char)('0' + rest % 10);
    while (rest /= 10);
    while (count)
        *at++ = digits[--count];
    return at;
}

static void put_line(char *line, char *end)
{
    *end++ = '\n';
    while (line < end) {
        ssize_t written = write(1, line, (size_t)(end - line));
        if (written < 0)
            _exit(120);
        line += written;
    }
}

UNUSED static void say_text(const char *text)
{
    char line[512];
    put_line(line, put_text(line, text));
}

UNUSED static void say(const char *name, long number)
{
    char line[512], *at = put_text(line, name);
    *at++ = ' ';
    put_line(line, put_number(at, number));
}

static void say_count(const char *kind, const char *function, long number)
{
    char line[512], *at = put_text(line, kind);
    *at++ = ' ';
    at = put_number(at, number);
    *at++ = ' ';
    put_line(line, put_text(at, function));
}

UNUSED static void count(const char *function, long number) { say_count("count", function, number); }

UNUSED static void count_launched(const char *function, long number)
{
    say_count("count_launched", function, number);
}

UNUSED static void varying(const char *function, long number) { say_count("varying", function, number); }

UNUSED static void count_by_pid(long pid, const char *function, long number)
{
    char line[512], *at = put_text(line, "count_by_pid ");
    at = put_number(at, pid);
    *at++ = ' ';
    at = put_number(at, number);
    *at++ = ' ';
    put_line(line, put_text(at, function));
}

/* Ends the program at once if something the test relies on does not hold. */
UNUSED static void require(int holds, const char *what)
{
    if (holds)
        return;
    say_text(what);
    _exit(121);
}

static void read_line(void)
{
    char letter = 0;
    while (letter != '\n') {
        ssize_t got = read(0, &letter, 1);
        if (got < 0) {
            say_text(errno == EINTR ? "read was interrupted" : "read failed");
            _exit(122);
        }
        if (got == 0)
            return;
    }
}

static void begin(int argc, char **argv, long usual)
{
    size = usual;
    for (int index = 1; index < argc; index++)
        if (argv[index][0] == 'w')
            waits = 1;
        else
            for (size = 0; *argv[index]; argv[index]++)
                size = size * 10 + (*argv[index] - '0');
    if (waits) {
        say_text("ready");
        read_line();
    }
}

UNUSED static int end(void)
{
    if (waits) {
        say_text("done");
        read_line();
    }
    return 0;
}

/* Zeroed memory that forked children share. */
UNUSED static void *shared_memory(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    require(memory != MAP_FAILED, "no shared memory");
    return memory;
}

#define STACK_SIZE (64 << 10)

/* A stack with a guard page below it. */
UNUSED static char *new_stack(void)
{
    char *guard = (char *)mmap(NULL, 4096 + STACK_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(guard != MAP_FAILED && mprotect(guard, 4096, PROT_NONE) == 0, "no stack");
    return guard + 4096;
}

UNUSED static void free_stack(char *stack) { munmap(stack - 4096, 4096 + STACK_SIZE); }

UNUSED static long add(long *counter, long number) { return __atomic_add_fetch(counter, number, __ATOMIC_SEQ_CST); }

#endif
