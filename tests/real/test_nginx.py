"""nginx with two workers under load: requests counted in both, and in workers that a probed master forks."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

import pytest

from harness.running import Running
from real.conftest import LOOPBACK, find_program, probing, wait_for_port

Run = Callable[..., Running]

CONFIGURATION = """
{user}
daemon off;
worker_processes 2;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 256; }}
http {{
    access_log {folder}/access.log;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    gzip on;
    gzip_types text/plain;
    server {{
        listen {address}:{port};
        root {folder}/pages;
        location /echo {{ return 200 "$request_method $uri $arg_x\\n"; }}
        location /proxy/ {{ proxy_pass http://{address}:{port}/; }}
    }}
}}
"""


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture
def server(run: Run, port: int, tmp_path: Path) -> Iterator[Running]:
    program = find_program("nginx")
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "page.txt").write_text("a line of text\n" * 2000)
    configuration = tmp_path / "nginx.conf"
    user = "user root;" if os.geteuid() == 0 else ""
    configuration.write_text(CONFIGURATION.format(user=user, folder=tmp_path, address=LOOPBACK, port=port))
    running = run(program, "-c", configuration, "-p", tmp_path, time_limit=110)
    wait_for_port(port)
    while len(children(running.pid)) < 2:
        time.sleep(0.01)
    yield running
    os.kill(running.pid, signal.SIGTERM)
    outcome = running.finish()
    assert outcome.status == 0, str(outcome)
    assert "signal" not in outcome.errors, outcome.errors  # a worker that crashed


def ask(port: int, rounds: int) -> list[tuple[int, bytes]]:
    """Three requests a round, each on a connection of its own."""
    answers = []
    for number in range(rounds):
        for path in (f"/echo?x={number}", "/page.txt", "/missing"):
            connection = http.client.HTTPConnection(LOOPBACK, port, timeout=30)
            connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
            answer = connection.getresponse()
            answers.append((answer.status, answer.read()))
            connection.close()
    return answers


def load(port: int, path: str = "/page.txt") -> None:
    words = [find_program("ab"), "-q", "-n", "4000", "-c", "20", f"http://{LOOPBACK}:{port}{path}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=True)
    assert "Failed requests:        0" in done.stdout, done.stdout
    assert "Non-2xx" not in done.stdout, done.stdout


def test_requests_are_counted(sidestep: ModuleType, server: Running, port: int) -> None:
    expected = ask(port, 50)
    with ExitStack() as sessions:
        probes = [
            sessions.enter_context(probing(sidestep, worker, "ngx_http_create_request"))
            for worker in children(server.pid)
        ]
        assert ask(port, 50) == expected
        assert sum(found["ngx_http_create_request"].hits for found in probes) == 150


@pytest.mark.parametrize("glob", ["ngx_http_*", "*", "libc:*"], ids=["http", "everything", "libc"])
def test_under_load(sidestep: ModuleType, server: Running, port: int, glob: str) -> None:
    expected = ask(port, 20)
    with ExitStack() as sessions:
        probes = [sessions.enter_context(probing(sidestep, worker, glob)) for worker in children(server.pid)]
        load(port)
        load(port, "/proxy/page.txt")
        assert ask(port, 20) == expected
        assert sum(probe.hits for found in probes for probe in found.values()) > 4000
    assert ask(port, 20) == expected
    load(port)


def test_new_workers_inherit_the_probes(sidestep: ModuleType, server: Running, port: int) -> None:
    """The master is probed; the workers that it forks then count under their own pids."""
    old = set(children(server.pid))
    expected = ask(port, 10)
    with probing(sidestep, server.pid, "ngx_http_create_request") as probes:
        os.kill(server.pid, signal.SIGHUP)
        end = time.monotonic() + 20
        while old & set(children(server.pid)) and time.monotonic() < end:
            time.sleep(0.05)
        workers = set(children(server.pid))
        assert len(workers) == 2
        assert ask(port, 10) == expected
        by_pid = probes["ngx_http_create_request"].hits_by_pid
        assert sum(by_pid.values()) == 30
        assert set(by_pid) <= workers
    assert ask(port, 10) == expected
    load(port)
