// Variadic functions: al says how many vector registers hold arguments, and must arrive.
// long: 20000000
#include "program.h"
#include <stdarg.h>

PROBED double total(int number, ...)
{
    va_list arguments;
    double sum = 0;
    va_start(arguments, number);
    for (int index = 0; index < number; index++)
        sum += index % 2 ? va_arg(arguments, double) : (double)va_arg(arguments, long);
    va_end(arguments);
    return sum;
}

/* Returns al as it was at the entry. */
ASSEMBLY(vector_count, "movzbl %al, %eax\n add $0, %eax\n ret");
long vector_count(int number, ...);

int main(int argc, char **argv)
{
    begin(argc, argv, 1000);
    double sum = 0;
    long vectors = 0;
    for (long turn = 0; turn < size; turn++) {
        sum += total(6, 1L, 2.5, turn, 0.5, 3L, 1.0) + total(1, turn) + total(0);
        vectors += vector_count(3, 1.0, 2.0, 3.0) + vector_count(0);
    }
    say("sum", (long)sum);
    say("vectors", vectors);
    count("total", size * 3);
    count("vector_count", size * 2);
    return end();
}
