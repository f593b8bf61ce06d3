// Code that the program writes itself, runs, unmaps and writes anew; probed functions are called from it.
// long: 100000
#include "program.h"

PROBED long callee(long value) { return value + 77; }
PROBED long call_code(long (*code)(long), long value) { return code(value) + 1; }

static const unsigned char program[] = {
    0x48, 0xff, 0xc7,                                           // inc %rdi
    0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0,                         // movabs $callee, %rax
    0xff, 0xe0,                                                 // jmp *%rax
};

int main(int argc, char **argv)
{
    begin(argc, argv, 50);
    long sum = 0;
    uintptr_t target = (uintptr_t)callee;
    for (long turn = 0; turn < size; turn++) {
        unsigned char *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        require(code != MAP_FAILED, "no memory");
        for (size_t index = 0; index < sizeof program; index++)
            code[index] = program[index];
        for (int index = 0; index < 8; index++)
            code[5 + index] = (unsigned char)(target >> (8 * index));
        require(mprotect(code, 4096, PROT_READ | PROT_EXEC) == 0, "mprotect failed");
        sum += call_code((long (*)(long))(uintptr_t)code, turn);
        munmap(code, 4096);
    }
    say("sum", sum);
    count("callee", size);
    count("call_code", size);
    return end();
}
