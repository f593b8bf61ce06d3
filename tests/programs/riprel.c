// Instructions whose memory operand is relative to rip, with every kind of tail: immediates, locks, VEX, BMI.
// long: 9000000
// cpu: avx2 bmi2
#include "program.h"

long variable = 40, table[4] = {1, 2, 3, 4};
float numbers[8] = {1, 2, 3, 4, 5, 6, 7, 8};

ASSEMBLY(load, "mov variable(%rip), %rax\n add %rdi, %rax\n ret");
ASSEMBLY(address, "lea table(%rip), %rax\n mov 8(%rax), %rax\n ret");
ASSEMBLY(store_immediate, "movl $7, variable(%rip)\n movq $40, variable(%rip)\n mov variable(%rip), %rax\n ret");
ASSEMBLY(compare_byte, "cmpb $40, variable(%rip)\n sete %al\n movzbl %al, %eax\n ret");
ASSEMBLY(exchange, "mov $40, %eax\n mov $41, %ecx\n lock cmpxchg %rcx, variable(%rip)\n sete %al\n movzbl %al, %eax\n"
                   "movq $40, variable(%rip)\n ret");
ASSEMBLY(exchange_wide, "push %rbx\n mov $1, %eax\n mov $2, %edx\n mov $1, %ebx\n mov $2, %ecx\n lock cmpxchg16b pair(%rip)\n"
                        "sete %al\n movzbl %al, %eax\n pop %rbx\n ret\n .pushsection .data\n .balign 16\n pair: .quad 1, 2\n .popsection");
ASSEMBLY(multiply, "mov $3, %edx\n mulx variable(%rip), %rax, %rcx\n add %rcx, %rax\n ret");
ASSEMBLY(multiply_immediate, "imul $1000, variable(%rip), %rax\n ret");
ASSEMBLY(rotate, "rorx $3, variable(%rip), %rax\n ret");
ASSEMBLY(vector, "vmovups numbers(%rip), %ymm0\n vaddps numbers(%rip), %ymm0, %ymm0\n vmovd %xmm0, %eax\n vzeroupper\n ret");
ASSEMBLY(shuffle, "vpshufd $0x1b, numbers(%rip), %xmm0\n vmovd %xmm0, %eax\n ret");
#define DECLARE(name) long name(long value);
DECLARE(load) DECLARE(address) DECLARE(store_immediate) DECLARE(compare_byte) DECLARE(exchange) DECLARE(exchange_wide)
DECLARE(multiply) DECLARE(multiply_immediate) DECLARE(rotate) DECLARE(vector) DECLARE(shuffle)

int main(int argc, char **argv)
{
    static const struct { const char *name; long (*function)(long); } kinds[] = {
        {"load", load}, {"address", address}, {"store_immediate", store_immediate}, {"compare_byte", compare_byte},
        {"exchange", exchange}, {"exchange_wide", exchange_wide}, {"multiply", multiply},
        {"multiply_immediate", multiply_immediate}, {"rotate", rotate}, {"vector", vector}, {"shuffle", shuffle},
    };
    begin(argc, argv, 100);
    for (int kind = 0; kind < 11; kind++) {
        long sum = 0;
        for (long turn = 0; turn < size; turn++)
            sum += kinds[kind].function(turn) & 0xffffffff;
        say(kinds[kind].name, sum);
    }
    for (int kind = 0; kind < 11; kind++)
        count(kinds[kind].name, size);
    return end();
}
