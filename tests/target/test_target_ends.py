"""A target that is killed, exits, crashes or runs another program in the middle of any step: an error that
says so, and what it does by itself is done as without a controller."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harness.running import Outcome, Running
from harness.samples import Samples
from sidestep import errors
from sidestep.errors import TargetError
from sidestep.target.process import ptrace, remote
from sidestep.target.process.memory import ProcessMemory

pytestmark = pytest.mark.process

STRIDE = 61  # of all steps, these are taken
GONE = (errors.PROCESS_GONE, errors.NO_SUCH_PROCESS, errors.ZOMBIE)
WHILE_IT_ENDS = 0.001  # seconds; it is not waited for: what it is in the middle of is chance, and should be

PROGRAM = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define THREADS 3

__attribute__((noipa)) long work(long value) { return value ^ (value << 7); }

static void *spin(void *unused)
{
    for (long turn = 0;; turn++)
        work(turn);
    return unused;
}

static void *obey(void *self)
{
    char order;
    if (read(0, &order, 1) != 1)
        exit(4);
    switch (order) {
    case 'e': exit(5);
    case 'c': *(volatile int *)8 = 1; break;
    case 'x': execl(self, "again", "after", NULL);
    }
    abort();
}

int main(int argc, char **argv)
{
    char order;
    if (argc > 1 && strcmp(argv[1], "after") == 0) {
        puts("another program");
        fflush(stdout);
        while (read(0, &order, 1) == 1)
            work(order);
        return 7;
    }
    puts("ready");
    fflush(stdout);
    pthread_t thread;
    for (int index = 0; index < THREADS; index++)
        pthread_create(&thread, NULL, spin, NULL);
    if (argc > 1)  /* who obeys is not the first thread */
        pthread_create(&thread, NULL, obey, argv[0]);
    else
        obey(argv[0]);
    spin(NULL);
}
"""


class Meddler:
    """Does something before a step: a ptrace request, a write to the process's memory or a call in it."""

    def __init__(self, step: int, act: Callable[[], None]) -> None:
        self.left, self.act, self.done = step, act, False

    def before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                self.act()
                self.done = True
            return function(*arguments)

        return step


ENDINGS = {  # the letter that the program gets; its status then
    "killed": (None, -signal.SIGKILL),
    "exits": ("e", 5),
    "crashes": ("c", -signal.SIGSEGV),
    "runs another program": ("x", 7),
}


def ended(running: Running, letter: str | None) -> Outcome:
    """What comes of the program when nobody sends it anything any more."""
    if letter == "x":
        running.expect("another program")
        running.close_input()
    return running.finish()


@pytest.mark.parametrize("words", [[], ["threads"]], ids=["first thread", "another thread"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_an_end_before_any_step(
    sidestep: ModuleType, samples: Samples, tmp_path: Path, ending: str, words: list[str]
) -> None:
    """Attaching, probing, unregistering, probing again with events, detaching."""
    letter, status = ENDINGS[ending]
    program = samples(PROGRAM, "-O2", "-pthread")
    first = 1 + 7 * list(ENDINGS).index(ending)
    for step in itertools.count(first, STRIDE):
        with Running([program, *words], folder=tmp_path) as running:
            running.expect("ready")

            def act(running: Running = running) -> None:
                if letter is None:
                    os.kill(running.pid, signal.SIGKILL)
                else:
                    running.send(letter)
                    time.sleep(WHILE_IT_ENDS)

            met, reason = probe(sidestep, running.pid, Meddler(step, act))
            if not met:
                assert step > STRIDE
                break
            outcome = ended(running, letter)
        assert outcome.status == status, f"at step {step}: {outcome}"
        assert reason in (None, *GONE), f"at step {step}: {reason}"


def probe(sidestep: ModuleType, pid: int, meddler: Meddler) -> tuple[bool, errors.Reason | None]:
    """Whether there were so many steps, and what was raised."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("call", "seize"):
            patch.setattr(ptrace, name, meddler.before(getattr(ptrace, name)))
        patch.setattr(ProcessMemory, "write", meddler.before(ProcessMemory.write))
        patch.setattr(remote.RemoteCalls, "call", meddler.before(remote.RemoteCalls.call))
        try:
            with sidestep.attach(pid) as target:
                (probe,) = target.count("sample:work").probes
                target.unregister_kprobe(probe)
                target.trace("sample:work value=$arg1")
        except TargetError as error:
            return meddler.done, error.reason
    return meddler.done, None
