// Calls and jumps through registers, memory, rip-relative memory and the stack; push of rsp; pushes from the stack.
// long: 9000000
#include "program.h"

PROBED long callee(long value) { return value + 21; }
long (*pointer)(long) = callee;

ASSEMBLY(call_register, "lea callee(%rip), %rax\n sub $8, %rsp\n call *%rax\n add $8, %rsp\n ret");
ASSEMBLY(call_memory, "push %rbx\n lea pointer(%rip), %rbx\n call *(%rbx)\n pop %rbx\n ret");
ASSEMBLY(call_rip, "push %rbx\n call *pointer(%rip)\n pop %rbx\n ret");
ASSEMBLY(call_stack, "push pointer(%rip)\n call *(%rsp)\n pop %rcx\n ret");
ASSEMBLY(call_stack_far, "push $0\n push pointer(%rip)\n push $0\n call *8(%rsp)\n add $24, %rsp\n ret");
ASSEMBLY(jump_rip, "add $1, %rdi\n jmp *pointer(%rip)");
ASSEMBLY(jump_stack, "push pointer(%rip)\n add $2, %rdi\n pop %rax\n push %rax\n mov (%rsp), %rax\n add $8, %rsp\n jmp *-8(%rsp)");
ASSEMBLY(call_next, "call 1f\n 1: pop %rax\n lea 1b(%rip), %rcx\n sub %rcx, %rax\n add %rdi, %rax\n ret");
ASSEMBLY(push_stack_pointer, "push %rsp\n pop %rax\n sub %rsp, %rax\n push 0(%rsp)\n pop %rcx\n sub (%rsp), %rcx\n add %rcx, %rax\n"
                             "add %rdi, %rax\n ret");
ASSEMBLY(enter_leave, "enter $32, $0\n mov %rdi, -8(%rbp)\n lea 5(%rdi), %rax\n sub -8(%rbp), %rax\n leave\n ret");
#define DECLARE(name) long name(long value);
DECLARE(call_register) DECLARE(call_memory) DECLARE(call_rip) DECLARE(call_stack) DECLARE(call_stack_far)
DECLARE(jump_rip) DECLARE(jump_stack) DECLARE(call_next) DECLARE(push_stack_pointer) DECLARE(enter_leave)

int main(int argc, char **argv)
{
    static const struct { const char *name; long (*function)(long); } kinds[] = {
        {"call_register", call_register}, {"call_memory", call_memory}, {"call_rip", call_rip},
        {"call_stack", call_stack}, {"call_stack_far", call_stack_far}, {"jump_rip", jump_rip},
        {"jump_stack", jump_stack}, {"call_next", call_next}, {"push_stack_pointer", push_stack_pointer},
        {"enter_leave", enter_leave},
    };
    begin(argc, argv, 100);
    for (int kind = 0; kind < 10; kind++) {
        long sum = 0;
        for (long turn = 0; turn < size; turn++)
            sum += kinds[kind].function(turn);
        say(kinds[kind].name, sum);
    }
    for (int kind = 0; kind < 10; kind++)
        count(kinds[kind].name, size);
    count("callee", size * 7);
    return end();
}
