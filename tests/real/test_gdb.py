"""gdb, a program that works in the C library, the C++ library and Python's at once: all functions of these
are probed while it does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from harness.programs import run_through, run_until_done
from harness.running import Running
from real.conftest import find_program, probing

Run = Callable[..., Running]

LIBRARIES = ("libc", "libstdc++", "libpython3*")
FEWEST = 6_000  # of its functions that are probed

SCRIPT = """
import json, re, sys, threading, zlib

def wait(word):
    print(word, flush=True)
    sys.stdin.readline()

def names():
    gdb.execute("file", to_string=True)
    gdb.execute(f"file {PROGRAM}", to_string=True)
    return zlib.crc32(gdb.execute("info functions", to_string=True).encode())

def code():
    entry = gdb.execute("info files", to_string=True)
    start = int(re.search("Entry point: (0x[0-9a-f]+)", entry)[1], 16)
    return zlib.crc32(gdb.execute(f"x/40i {start}", to_string=True).encode())

def values():
    return [str(gdb.parse_and_eval(f"({number} * 7.5 + 3) / 2")) for number in range(40)]

def objects():
    table = {str(number): [number, number / 3, {"deep": [number] * 3}] for number in range(500)}
    return json.loads(json.dumps(table)) == table, len(json.dumps(table))

def threads():
    sums = [0] * 4
    def run(index):
        for number in range(2000):
            sums[index] += number ** 2 % 7
    running = [threading.Thread(target=run, args=(index,)) for index in range(4)]
    [thread.start() for thread in running]
    [thread.join() for thread in running]
    return sums

def errors():
    try:
        gdb.execute("print no_such_variable")
    except gdb.error as error:
        return str(error)

for round in range(3):
    if round:
        wait("ready" if round == 1 else "done")
    for work in (names, code, values, objects, threads, errors):
        print(work.__name__, work())
"""


def test_all_of_three_libraries(run: Run, sidestep: ModuleType, tmp_path: Path) -> None:
    program = find_program("gdb")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("{PROGRAM}", find_program("sqlite3")))
    words = [program, "-nx", "-q", "-batch", "-x", script]
    expected = run_through(run(*words))
    assert expected.status == 0, str(expected)
    running = run(*words, time_limit=90)
    running.expect("ready")
    with probing(sidestep, running.pid, *(f"{library}:*" for library in LIBRARIES)) as probes:
        assert len(probes) > FEWEST
        running.send()
        run_until_done(running)
        assert all(probes[name].hits for name in ("malloc", "PyObject_Hash", "PyDict_New"))
    running.send()
    outcome = running.finish()
    assert (outcome.status, outcome.output) == (expected.status, expected.output), str(outcome)
