"""CPython while it runs a script: objects, modules in C, threads, exceptions, child processes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from harness.programs import run_through, run_until_done
from harness.running import Running
from real.conftest import find_program, probing

Run = Callable[..., Running]

CALLS = 20000

SCRIPT = """
import hashlib, json, os, re, subprocess, sys, threading, zlib

def wait(word):
    print(word, flush=True)
    sys.stdin.readline()

def objects():
    table = {str(number): [number, number / 3, {"deep": [number] * 3}] for number in range(2000)}
    return json.loads(json.dumps(table)) == table, len(json.dumps(table))

def text():
    found = re.findall(r"(\\\\w+)-(\\\\d+)", " ".join(f"name{number % 7}-{number}" for number in range(3000)))
    return len(found), hashlib.sha256(repr(found).encode()).hexdigest()

def data():
    packed = zlib.compress(bytes(range(256)) * 500)
    return len(packed), hashlib.md5(zlib.decompress(packed)).hexdigest()

def exceptions():
    caught = 0
    for number in range(5000):
        try:
            [][number]
        except IndexError:
            caught += 1
    return caught

def threads():
    sums = [0] * 4
    def run(index):
        for number in range(3000):
            sums[index] += number ** 2 % 7
    running = [threading.Thread(target=run, args=(index,)) for index in range(4)]
    [thread.start() for thread in running]
    [thread.join() for thread in running]
    return sums

def children():
    outputs = []
    for number in range(5):
        words = [sys.executable, "-S", "-c", f"print({number} * 2)"]
        outputs.append(subprocess.run(words, capture_output=True, text=True).stdout)
    for number in range(5):
        pid = os.fork()
        if pid == 0:
            os._exit(len(json.dumps(list(range(number)))))
        outputs.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    return outputs

for round in range(2):
    if round:
        wait("ready")
    for work in (objects, text, data, exceptions, threads, children):
        result = work()
        if round:
            print(work.__name__, result)
for call in range(CALLS):
    os.getppid()
wait("done")
"""


@pytest.fixture(params=["/usr/bin/python3", sys.executable], ids=["system", "own"])
def interpreter(request: pytest.FixtureRequest) -> str:
    return find_program(request.param)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.replace("CALLS", str(CALLS)))
    return path


def start(run: Run, interpreter: str, script: Path) -> Running:
    return run(interpreter, script, environment={"PYTHONHASHSEED": "0"}, time_limit=90)


def test_objects_and_calls(sidestep: ModuleType, run: Run, interpreter: str, script: Path) -> None:
    """Thousands of calls a second to the interpreter's own functions; one call whose number is known."""
    expected = run_through(start(run, interpreter, script))
    running = start(run, interpreter, script)
    running.expect("ready")
    with probing(sidestep, running.pid, "PyObject_*", "PyDict_*", "PyUnicode_*", "libc:getppid") as probes:
        running.send()
        assert run_until_done(running)
        assert probes["getppid"].hits == CALLS
        assert len(probes) > 100
        assert sum(probe.hits for probe in probes.values()) > CALLS + 10000
    running.send()
    outcome = running.finish()
    assert (outcome.output, outcome.status) == (expected.output, expected.status), str(outcome)


def test_the_allocator(sidestep: ModuleType, run: Run, interpreter: str, script: Path) -> None:
    """malloc and free, with their arguments, in the parent and in its children."""
    expected = run_through(start(run, interpreter, script))
    running = start(run, interpreter, script)
    running.expect("ready")
    target = sidestep.attach(running.pid)
    batch = target.trace("p:big libc:malloc size=$arg1:u64 if size >= 4096", "p:free libc:free where=$arg1")
    running.send()
    assert run_until_done(running)
    sizes = [event.args["size"] for event in target.events(timeout=2) if event.name == "big"]
    assert sizes
    assert min(sizes) >= 4096
    assert any(pid != running.pid for probe in batch.probes for pid in probe.hits_by_pid)
    target.detach()
    running.send()
    outcome = running.finish()
    assert (outcome.output, outcome.status) == (expected.output, expected.status), str(outcome)


def test_launched(sidestep: ModuleType, run: Run, interpreter: str, script: Path) -> None:
    """Probes from before the first instruction on, in the program itself."""
    from harness.probing import launcher

    expected = run_through(start(run, interpreter, script))
    environment = {"PYTHONHASHSEED": "0"}
    running = run(interpreter, script, environment=environment, time_limit=90, start=launcher(sidestep))
    target = running.process.target
    (probe,) = target.count("PyObject_Malloc").probes
    target.resume()
    outcome = run_through(running)
    assert probe.hits > 1000
    target.detach()
    assert (outcome.output, outcome.status) == (expected.output, expected.status), str(outcome)
