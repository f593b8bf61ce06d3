// The C library's allocator, called in the usual patterns by four threads.
// long: 2000000
#include "program.h"
#include <pthread.h>

#define THREADS 4
#define KEPT 64

static void *run(void *argument)
{
    unsigned char *kept[KEPT] = {0};
    unsigned long seed = (unsigned long)argument + 1, sum = 0;
    for (long turn = 0; turn < size; turn++) {
        seed = seed * 6364136223846793005 + 1442695040888963407;
        size_t bytes = 1 + (seed >> 33) % (turn % 50 ? 400 : 40000);
        unsigned char **slot = &kept[(seed >> 20) % KEPT];
        if (*slot) {
            sum += **slot;
            free(*slot);
        }
        *slot = turn % 3 ? malloc(bytes) : calloc(1, bytes);
        **slot = (unsigned char)turn;
    }
    for (int index = 0; index < KEPT; index++)
        free(kept[index]);
    return (void *)sum;
}

int main(int argc, char **argv)
{
    begin(argc, argv, 500);
    pthread_t threads[THREADS];
    unsigned long sum = 0;
    for (long index = 0; index < THREADS; index++)
        require(pthread_create(&threads[index], NULL, run, (void *)index) == 0, "no thread");
    for (int index = 0; index < THREADS; index++) {
        void *result;
        pthread_join(threads[index], &result);
        sum += (unsigned long)result;
    }
    say("sum", (long)sum);
    count("libc:malloc", THREADS * (size - (size + 2) / 3));
    count("run", THREADS);
    return end();
}
