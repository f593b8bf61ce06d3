"""The samples with native handlers, each against the program that it is written for."""

from __future__ import annotations

import contextlib
import http.client
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.running import Running
from real.conftest import LOOPBACK, find_program, wait_for_port
from real.test_redis import Client

Run = Callable[..., Running]
SAMPLES = Path(__file__).parents[2] / "samples"

ALLOCATING = """
import sys
while True:
    sys.stdin.readline()
    for _ in range(200):
        bytearray(3 << 20)
    print("done", flush=True)
"""
READING = """
import os, sys
with open(sys.argv[1], "wb") as made:
    made.write(bytes(1 << 20))
file = os.open(sys.argv[1], os.O_RDONLY)
while True:
    sys.stdin.readline()
    for place in range(0, 1 << 20, 4096):
        os.pread(file, 4096, place)
    for place in range(1 << 20, 0, -65536):
        os.pread(file, 16, place)
    print("done", flush=True)
"""


class Sample:
    """A sample that runs for a while beside its target, and what it has printed."""

    def __init__(self, name: str, *arguments: object) -> None:
        words = [sys.executable, str(SAMPLES / name), *map(str, arguments)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self.process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0, env=environment
        )

    def output(self) -> str:
        out, err = self.process.communicate(timeout=90)
        assert self.process.returncode == 0, err
        return out


@contextlib.contextmanager
def working(work: Callable[[], None]) -> Iterator[None]:
    """Do something again and again while the `with` lasts."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def again() -> None:
        try:
            while not stop.is_set():
                work()
        except BaseException as error:
            failures.append(error)

    worker = threading.Thread(target=again)
    worker.start()
    try:
        yield
    finally:
        stop.set()
        worker.join()
    assert not failures


@pytest.fixture
def asking(run: Run, tmp_path: Path) -> Callable[[str], tuple[Running, Callable[[], None]]]:
    def start(program: str) -> tuple[Running, Callable[[], None]]:
        running = run(sys.executable, "-c", program, str(tmp_path / "file"), time_limit=110)

        def work() -> None:
            running.send()
            running.expect("done")

        return running, work

    return start


def test_allocations(asking: Callable[[str], tuple[Running, Callable[[], None]]]) -> None:
    running, work = asking(ALLOCATING)
    with working(work):
        output = Sample("allocations.py", running.pid, 1).output()
    assert "3145729 bytes from" in output or "3145728 bytes from" in output
    assert "[2M, 4M)" in output
    assert "bytes by" in output


def test_read_patterns(asking: Callable[[str], tuple[Running, Callable[[], None]]]) -> None:
    running, work = asking(READING)
    with working(work):
        output = Sample("read_patterns.py", running.pid, 1).output()
    in_order, rest = output.split(" reads where the last one ended, ")
    elsewhere = rest.split(" elsewhere")[0]
    assert int(in_order) > 10 * int(elsewhere) > 0
    assert "[64K, 128K)" in output or "[32K, 64K)" in output


def test_opened_files(tmp_path: Path) -> None:
    sqlite = find_program("sqlite3")
    database = tmp_path / "some.db"
    sample = Sample("opened_files.py", sqlite, database, "create table t(a); insert into t values (1);")
    out, err = sample.process.communicate(timeout=90)
    assert sample.process.returncode == 0, err
    assert out == ""
    assert f"sqlite3: {database} (" in err


def test_hashed_keys(run: Run, port: int, tmp_path: Path) -> None:
    options = ["--port", str(port), "--bind", LOOPBACK, "--save", "", "--dir", tmp_path]
    running = run(find_program("redis-server"), *options, time_limit=110)
    wait_for_port(port)
    client = Client(port)

    def ask() -> None:
        assert client("set", "a:key", 1) == "OK"

    with contextlib.closing(client), working(ask):
        output = Sample("hashed_keys.py", running.pid, 1).output()
    assert " a:key\n" in output
    assert "[4, 8)" in output


def test_write_sizes(run: Run, port: int, tmp_path: Path) -> None:
    user = "user root;" if os.geteuid() == 0 else ""
    (tmp_path / "page").write_text("x" * 3000)
    configuration = tmp_path / "nginx.conf"
    configuration.write_text(
        f"""{user} daemon off; master_process off; pid {tmp_path}/pid; error_log stderr warn;
        events {{}}
        http {{ access_log {tmp_path}/access; sendfile off; client_body_temp_path {tmp_path}/body;
        server {{ listen {LOOPBACK}:{port}; root {tmp_path}; }} }}"""
    )
    running = run(find_program("nginx"), "-c", configuration, time_limit=110)
    wait_for_port(port)

    def ask() -> None:
        connection = http.client.HTTPConnection(LOOPBACK, port, timeout=30)
        connection.request("GET", "/page")
        assert len(connection.getresponse().read()) == 3000
        connection.close()

    with working(ask):
        output = Sample("write_sizes.py", running.pid, 1).output()
    assert "[2K, 4K)" in output
    assert "count " in output


@pytest.mark.parametrize("name", sorted(path.name for path in SAMPLES.glob("*.py")))
def test_without_arguments_a_sample_says_how_it_is_used(name: str) -> None:
    process = Sample(name).process
    out, err = process.communicate(timeout=90)
    assert (out, process.returncode) == ("", 1)
    (line,) = err.splitlines()
    assert f": {name} " in line
