// Its file is mapped thousands of times, with other code between: what is done for each mapping must be cheap.
// long: 200000000
// only: glibc
#include "program.h"
#include <fcntl.h>

#define PAGE 0x1000L
#define COUNT 3000

PROBED long work(long value) { return value * 8 + 3; }

int main(int argc, char **argv)
{
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    char *room = mmap(NULL, COUNT * 4 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    require(file >= 0 && room != MAP_FAILED, "no room");
    for (char *at = room; at < room + COUNT * 4 * PAGE; at += 4 * PAGE) {
        char *code = mmap(at, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, file, PAGE);
        char *other = mmap(at + 2 * PAGE, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        require(code == at && other == at + 2 * PAGE, "no mapping");
    }
    close(file);
    begin(argc, argv, 1000);
    long sum = 0;
    for (long turn = 0; turn < size; turn++)
        sum += work(turn);
    say("sum", sum);
    count("work", size);
    return end();
}
