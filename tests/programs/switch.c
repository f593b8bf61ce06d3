// Jump tables: a computed jump may lead to any of many places in the function.
// long: 100000000
#include "program.h"

PROBED long dispatch(long operation, long value)
{
    switch (operation) {
    case 0: return value + 1;
    case 1: return value - 2;
    case 2: return value * 3;
    case 3: return value / 4;
    case 4: return value ^ 5;
    case 5: return value | 6;
    case 6: return value & 7;
    case 7: return value << 3;
    case 8: return value >> 1;
    case 9: return ~value;
    case 10: return -value;
    case 11: return value % 11;
    default: return 12;
    }
}

PROBED long dispatch_loop(const unsigned char *program, long value)
{
    for (;; program++)
        switch (*program) {
        case 0: return value;
        case 1: value += 3; break;
        case 2: value *= 5; break;
        case 3: value ^= 0x55; break;
        case 4: value -= value >> 2; break;
        case 5: value = value * value % 1000; break;
        case 6: value |= 1; break;
        }
}

int main(int argc, char **argv)
{
    static const unsigned char program[] = {1, 2, 3, 4, 5, 6, 6, 5, 4, 3, 2, 1, 0};
    begin(argc, argv, 1000);
    unsigned long sum = 0;
    for (long turn = 0; turn < size; turn++)
        sum += (unsigned long)(dispatch(turn % 13, turn) + (turn % 10 ? 0 : dispatch_loop(program, turn)));
    say("sum", (long)(sum >> 1));
    count("dispatch", size);
    count("dispatch_loop", (size + 9) / 10);
    return end();
}
