// An interpreter whose every step is an indirect jump to a label of the same function.
// long: 70000000
#include "program.h"

PROBED long interpret(const unsigned char *code, long value)
{
    static const void *const labels[] = {&&stop, &&increment, &&twice, &&invert, &&halve};
    goto *labels[*code++];
increment:
    value++;
    goto *labels[*code++];
twice:
    value *= 2;
    goto *labels[*code++];
invert:
    value ^= 0xff;
    goto *labels[*code++];
halve:
    value >>= 1;
    goto *labels[*code++];
stop:
    return value;
}

int main(int argc, char **argv)
{
    static const unsigned char code[] = {1, 2, 3, 4, 1, 1, 2, 4, 3, 2, 0};
    begin(argc, argv, 1000);
    long sum = 0;
    for (long turn = 0; turn < size; turn++)
        sum += interpret(code + turn % 10, turn);
    say("sum", sum);
    count("interpret", size);
    return end();
}
