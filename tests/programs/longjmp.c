// longjmp leaves many probed frames at once.
// long: 10000000
#include "program.h"
#include <setjmp.h>

static jmp_buf back;

static long (*volatile descend_through)(long);

PROBED long descend(long depth)
{
    if (depth == 0)
        longjmp(back, 5);
    return descend_through(depth - 1) + depth;
}

PROBED long try_it(long depth)
{
    int code = setjmp(back);
    return code ? code : descend(depth);
}

int main(int argc, char **argv)
{
    begin(argc, argv, 100);
    descend_through = descend;
    long sum = 0;
    for (long turn = 0; turn < size; turn++)
        sum += try_it(20);
    say("sum", sum);
    count("try_it", size);
    count("descend", size * 21);
    return end();
}
