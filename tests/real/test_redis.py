"""redis-server with clients, redis-benchmark, and a background save, which forks."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from harness.running import Running
from harness.untouched import read_state
from real.conftest import LOOPBACK, check_nothing_remains, find_program, probing, wait_for_port

Run = Callable[..., Running]


class Client:
    """Speaks the protocol, as far as the tests need it."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection((LOOPBACK, port), timeout=30)
        self.file = self.socket.makefile("rwb")

    def __call__(self, *words: object) -> object:
        parts = [str(word).encode() for word in words]
        self.file.write(b"*%d\r\n" % len(parts))
        for part in parts:
            self.file.write(b"$%d\r\n%s\r\n" % (len(part), part))
        self.file.flush()
        return self._answer()

    def _answer(self) -> object:
        line = self.file.readline().rstrip(b"\r\n")
        kind, rest = line[:1], line[1:].decode()
        if kind == b"$":
            size = int(rest)
            return None if size < 0 else self.file.read(size + 2)[:-2].decode()
        if kind == b"*":
            return [self._answer() for _ in range(int(rest))]
        if kind == b":":
            return int(rest)
        if kind == b"-":
            raise RuntimeError(rest)
        return rest

    def close(self) -> None:
        self.file.close()
        self.socket.close()


@pytest.fixture
def server(run: Run, port: int, tmp_path: Path) -> Running:
    options = ["--port", str(port), "--bind", LOOPBACK, "--save", "", "--dir", tmp_path]
    running = run(find_program("redis-server"), *options, time_limit=110)
    wait_for_port(port)
    return running


@pytest.fixture
def client(server: Running, port: int) -> Iterator[Client]:
    client = Client(port)
    yield client
    client.close()


def conversation(client: Client, rounds: int) -> list[object]:
    """Commands of many kinds, whose answers are known."""
    answers: list[object] = [client("flushall")]
    for number in range(rounds):
        answers += [
            client("set", f"key:{number % 50}", f"value {number}"),
            client("get", f"key:{number % 70}"),
            client("incr", "counter"),
            client("lpush", "list", number),
            client("lrange", "list", 0, 3),
            client("hset", "hash", f"field{number % 9}", number),
            client("zadd", "sorted", number * 0.5, f"member{number % 20}"),
            client("zrange", "sorted", 0, -1, "withscores"),
            client("eval", "return redis.call('get', KEYS[1])", 1, "counter"),
        ]
    answers.append(client("sort", "list", "desc", "limit", 0, 5))
    return answers


def benchmark(port: int, commands: str, requests: int) -> subprocess.Popen[str]:
    """redis-benchmark with twenty clients."""
    words = [find_program("redis-benchmark"), "-h", LOOPBACK, "-p", str(port), "-c", "20", "-q"]
    words += ["-n", str(requests), "-t", commands]
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)


def finish(load: subprocess.Popen[str]) -> None:
    output, _ = load.communicate(timeout=100)
    assert load.returncode == 0
    assert "rror" not in output


def load(port: int) -> None:
    """The commands that most people use."""
    finish(benchmark(port, "set,get,incr,lpush,rpop,sadd,hset,zadd,lrange_100,mset", 4000))


def test_commands_are_counted(sidestep: ModuleType, server: Running, client: Client) -> None:
    expected = conversation(client, 200)
    with probing(sidestep, server.pid, "getCommand", "setCommand", "lpushCommand", "zaddCommand") as probes:
        assert conversation(client, 200) == expected
        hits = {name: probe.hits for name, probe in probes.items()}
    assert hits["setCommand"] == hits["lpushCommand"] == hits["zaddCommand"] == 200
    assert hits["getCommand"] == 400  # scripts come through it, too


@pytest.mark.parametrize("glob", ["*Command", "*", "libc:*"], ids=["commands", "everything", "libc"])
def test_under_load(sidestep: ModuleType, server: Running, client: Client, port: int, glob: str) -> None:
    """Hundreds of functions, or thousands, probed while twenty clients work."""
    expected = conversation(client, 50)
    with probing(sidestep, server.pid, glob) as probes:
        load(port)
        assert conversation(client, 50) == expected
        assert sum(probe.hits for probe in probes.values()) > 1000
        assert len(probes) > 100
    assert conversation(client, 50) == expected
    load(port)


def test_controllers_come_and_go_under_load(
    sidestep: ModuleType, server: Running, client: Client, port: int
) -> None:
    expected = conversation(client, 50)
    before = read_state(server.pid)
    working = benchmark(port, "set,get,lpush", 60000)
    rounds = 0
    while working.poll() is None and rounds < 20:
        with probing(sidestep, server.pid, "*Command", "libc:read", "libc:write"):
            time.sleep(0.02)
        rounds += 1
    finish(working)
    assert rounds > 1
    check_nothing_remains(before, server.pid)
    assert conversation(client, 50) == expected


def test_a_background_save_forks(
    sidestep: ModuleType, server: Running, client: Client, port: int, tmp_path: Path
) -> None:
    """The child writes the same file with probes in it, and its hits are told apart by its pid."""
    load(port)
    conversation(client, 50)
    with probing(sidestep, server.pid, "rdbSave*", "libc:write", "rioWrite*") as probes:
        client("bgsave")
        end = time.monotonic() + 30
        while "rdb_bgsave_in_progress:1" in str(client("info", "persistence")) and time.monotonic() < end:
            time.sleep(0.02)
        assert "rdb_last_bgsave_status:ok" in str(client("info", "persistence"))
        pids = {pid for probe in probes.values() for pid in probe.hits_by_pid}
        assert pids - {server.pid}
    check = shutil.which("redis-check-rdb")
    if check is not None:
        words = [check, str(tmp_path / "dump.rdb")]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
    assert client("ping") == "PONG"


CRASH = re.compile(r"# Crashed running the instruction at: 0x([0-9a-f]+)")
FRAME = re.compile(r"^(?:redis-server|.*/redis-server)[^(]*\((\w*)\+(0x[0-9a-f]+)\)", re.MULTILINE)


def base_of(running: Running) -> int:
    program = os.path.realpath(find_program("redis-server"))
    return next(area.start for area in read_state(running.pid).areas if area.path == program)


def crash(
    run: Run, port: int, probing: Callable[[Running], contextlib.AbstractContextManager[object]]
) -> tuple[int, list[tuple[str, str]], int]:
    """Where it crashes, from the start of the module; the frames of its report; its exit status."""
    options = ["--port", str(port), "--bind", LOOPBACK, "--save", "", "--enable-debug-command", "yes"]
    running = run(find_program("redis-server"), *options, "--crash-memcheck-enabled", "no", time_limit=110)
    wait_for_port(port)
    base, client = base_of(running), Client(port)
    with probing(running):
        with contextlib.suppress(OSError):
            client("DEBUG", "SEGFAULT")
        outcome = running.finish()
    client.close()
    found = CRASH.search(outcome.output)
    assert found, str(outcome)
    return int(found[1], 16) - base, FRAME.findall(outcome.output), outcome.status


def test_the_report_of_a_crash_names_the_original_instruction(
    sidestep: ModuleType, run: Run, port: int
) -> None:
    """Its handler prints where it crashed, a backtrace, and the code there; then it ends by the signal."""
    bare = crash(run, port, lambda running: contextlib.nullcontext())
    assert bare[1]
    hits = []

    @contextlib.contextmanager
    def probing(running: Running) -> Iterator[None]:
        with sidestep.attach(running.pid) as target:
            probe = sidestep.Kprobe(addr=base_of(running) + bare[0])
            target.register_kprobe(probe)
            target.count("debugCommand")
            yield
            hits.append(probe.hits)

    assert crash(run, port, probing) == bare
    assert hits == [1]
