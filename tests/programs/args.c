// Arguments of every kind: many, small, structures by value, strings, bad pointers, floating point.
// long: 30000000
#include "program.h"

struct pair { long first, second; };
struct large { long words[6]; };

PROBED long take_ten(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j)
{
    return a - b + c - d + e - f + g - h + i - j;
}
PROBED long take_small(signed char a, unsigned char b, short c, unsigned short d, int e, unsigned f)
{
    return a + b + c + d + e + f;
}
PROBED long take_pair(struct pair pair, long scale) { return (pair.first + pair.second) * scale; }
PROBED long take_large(struct large large) { return large.words[0] + large.words[5]; }
PROBED long take_string(const char *text) { return text ? (unsigned char)*text : -1; }
PROBED long take_pointer(const void *pointer) { return (long)((uintptr_t)pointer >> 60); }
PROBED double take_double(double value, long scale) { return value * (double)scale; }

int main(int argc, char **argv)
{
    begin(argc, argv, 10);
    char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int index = 0; index < 4096; index++)
        page[index] = (char)('a' + index % 26);
    munmap(page + 4096, 4096); // a string that runs into nothing, 6 letters from its start below
    static const char *const texts[] = {"plain", "", "tab\tand \33[31mescape\33[0m", "\xff\xfe not UTF-8", NULL};
    static const uintptr_t pointers[] = {0, 1, 0xfff, 0x7fffffffffffUL, 0x8000000000000000UL, 0xffffffffff600000UL};
    long sum = 0;
    for (long turn = 0; turn < size; turn++) {
        struct pair pair = {turn, -7};
        struct large large = {{turn, 2, 3, 4, 5, 6}};
        sum += take_ten(turn, 2, 3, 4, 5, 6, 7, 8, -9, 10);
        sum += take_small(-1, 255, -300, 65535, -100000, 4000000000U);
        sum += take_pair(pair, 3) + take_large(large);
        sum += turn % 6 == 5 ? take_string(page + 4090) : take_string(texts[turn % 6]);
        sum += take_pointer((const void *)pointers[turn % 6]);
        sum += (long)take_double(0.5, turn);
    }
    say("sum", sum);
    count("take_ten", size);
    count("take_small", size);
    count("take_pair", size);
    count("take_large", size);
    count("take_string", size);
    count("take_pointer", size);
    count("take_double", size);
    return end();
}
