// Functions that make system calls of their own, with the instruction among their first bytes.
// long: 1000000
#include "program.h"
#include <sys/syscall.h>

ASSEMBLY(parent, "mov $110, %eax\n syscall\n ret");
ASSEMBLY(fail, "push $-1\n pop %rax\n syscall\n mov %rcx, %rdx\n ret");
ASSEMBLY(registers, "mov $39, %eax\n xor %ecx, %ecx\n syscall\n lea 0(%rip), %rdx\n sub %rcx, %rdx\n mov %rdx, %rax\n ret");
long parent(void), fail(void), registers(void);

int main(int argc, char **argv)
{
    begin(argc, argv, 100);
    long same = 0, missing = 0, returned = 0;
    for (long turn = 0; turn < size; turn++) {
        same += parent() == getppid();
        missing += fail() == -ENOSYS;
        returned += registers() == 7; // rcx holds the address after the system call instruction
    }
    say("same", same);
    say("missing", missing);
    say("right", returned == size);
    count("registers", size);
    count("parent", size);
    count("fail", size);
    return end();
}
