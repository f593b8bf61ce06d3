"""Ten thousand probes, while 64 threads are in the functions that they are put into."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from harness.build import PROGRAMS
from harness.programs import run_through, run_until_done
from harness.running import Running
from harness.samples import Samples
from harness.untouched import read_state, remains

pytestmark = pytest.mark.process

# Each thread calls all 10,000 functions SIZE times, in an order of its own.
PROGRAM = """
#include "program.h"
#include <pthread.h>

#define THREADS 64
#define TEN(m, n) m(n##0) m(n##1) m(n##2) m(n##3) m(n##4) m(n##5) m(n##6) m(n##7) m(n##8) m(n##9)
#define HUNDRED(m, n) TEN(m, n##0) TEN(m, n##1) TEN(m, n##2) TEN(m, n##3) TEN(m, n##4) \\
                      TEN(m, n##5) TEN(m, n##6) TEN(m, n##7) TEN(m, n##8) TEN(m, n##9)
#define THOUSAND(m, n) HUNDRED(m, n##0) HUNDRED(m, n##1) HUNDRED(m, n##2) HUNDRED(m, n##3) HUNDRED(m, n##4) \\
                       HUNDRED(m, n##5) HUNDRED(m, n##6) HUNDRED(m, n##7) HUNDRED(m, n##8) HUNDRED(m, n##9)
#define ALL(m) THOUSAND(m, 0) THOUSAND(m, 1) THOUSAND(m, 2) THOUSAND(m, 3) THOUSAND(m, 4) \\
               THOUSAND(m, 5) THOUSAND(m, 6) THOUSAND(m, 7) THOUSAND(m, 8) THOUSAND(m, 9)

#define DEFINE(n) PROBED long f_##n(long value) { return value / 3 ^ 1##n; }
#define ENTRY(n) f_##n,
#define FUNCTIONS 10000

ALL(DEFINE)
static long (*const functions[])(long) = {ALL(ENTRY)};
static long sums;

static void *run(void *argument)
{
    long sum = 0, step = 2 * (long)argument + 1;  /* none is a multiple of 5 */
    step += step % 5 ? 0 : 2;
    for (long turn = 0; turn < size; turn++)
        for (long number = 0; number < FUNCTIONS; number++)
            sum += functions[number * step % FUNCTIONS](turn);
    add(&sums, sum);
    return NULL;
}

int main(int argc, char **argv)
{
    begin(argc, argv, 100);
    pthread_t threads[THREADS];
    for (long index = 0; index < THREADS; index++)
        require(pthread_create(&threads[index], NULL, run, (void *)index) == 0, "no thread");
    for (int index = 0; index < THREADS; index++)
        pthread_join(threads[index], NULL);
    say("sums", sums);
    return end();
}
"""
TURNS = 30
CALLS = 64 * TURNS  # of each function
FUNCTIONS = 10_000


def test_ten_thousand_probes_on_64_threads(
    sidestep: ModuleType, samples: Samples, run: Callable[..., Running]
) -> None:
    program = samples(PROGRAM, "-O1", "-falign-functions=16", "-pthread", f"-I{PROGRAMS}")
    expected = run_through(run(program, str(TURNS), "wait", time_limit=90))
    assert expected.status == 0, str(expected)
    running = run(program, str(TURNS), "wait", time_limit=90)
    running.expect("ready")
    before = read_state(running.pid)
    target = sidestep.attach(running.pid)
    stay = [probe for digit in "02468" for probe in target.count(f"sample:f_???{digit}").probes]
    running.send()
    rounds = 0
    while rounds < 2:  # half of them come and go while all are called
        others = [probe for digit in "13579" for probe in target.count(f"sample:f_???{digit}").probes]
        assert len(stay) + len(others) == FUNCTIONS
        target.unregister_kprobes(others)
        assert all(probe.hits <= CALLS for probe in others)
        rounds += 1
    run_until_done(running)
    assert {probe.hits for probe in stay} == {CALLS}
    target.detach()
    assert remains(before, read_state(running.pid)) == []
    running.send()
    outcome = running.finish()
    assert (outcome.status, outcome.output) == (expected.status, expected.output), str(outcome)
