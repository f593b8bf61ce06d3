// Sixteen threads hammer 64 functions of four shapes, and one that many of them call. SIZE 0: until a line comes.
// long: 200000
#include "program.h"
#include <pthread.h>

#define THREADS 16

/* Functions are numbered in base four. The last digit is the shape. */
#define FOUR(m, n) m(LEAF, n##0) m(LOOP, n##1) m(CALL, n##2) m(EARLY, n##3)
#define SIXTEEN(m, n) FOUR(m, n##0) FOUR(m, n##1) FOUR(m, n##2) FOUR(m, n##3)
#define ALL(m) SIXTEEN(m, 0) SIXTEEN(m, 1) SIXTEEN(m, 2) SIXTEEN(m, 3)

PROBED long called(long value) { return value / 3 + 7; }

static inline long step(long value, long by) { return (value ^ by) * 5 + by; }

#define LEAF(n) return step(value, 0x##n);
#define LOOP(n) for (int turn = 0; turn < 3; turn++) value = step(value, turn + 0x##n); return value;
#define CALL(n) return step(called(value + 0x##n), 0x##n);
#define EARLY(n) if (value & 1) return value - 0x##n; return step(value, 0x##n) / 7;

#define DEFINE(shape, n) PROBED long f_##n(long value) { shape(n) }
#define CHECK(shape, n) wrong += f_##n(turn) != twin_##n(turn);
#define TWIN(shape, n) static inline long twin_##n(long value) { shape(n) }
#define COUNT(shape, n) count("f_" #n, turns);

ALL(DEFINE)
#define called(value) ((value) / 3 + 7)
ALL(TWIN)
#undef called

static volatile int stop;
static long turns, wrong_results;

static void *run(void *unused)
{
    long turn = 0, wrong = 0;
    for (; size ? turn < size : !stop; turn++) {
        ALL(CHECK)
    }
    add(&turns, turn);
    add(&wrong_results, wrong);
    return unused;
}

int main(int argc, char **argv)
{
    begin(argc, argv, 100);
    pthread_t threads[THREADS];
    for (int index = 0; index < THREADS; index++)
        require(pthread_create(&threads[index], NULL, run, NULL) == 0, "no thread");
    if (size == 0) {
        read_line();
        stop = 1;
    }
    for (int index = 0; index < THREADS; index++)
        pthread_join(threads[index], NULL);
    say("wrong", wrong_results);
    ALL(COUNT)
    count("called", turns * 16);
    return end();
}
