"""Where programs really live: files that are gone, other namespaces and roots, code in anonymous memory."""

from __future__ import annotations

import lzma
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from harness.build import Builder
from harness.probing import attached
from harness.programs import READY, comparable, counts, place, run_until_done
from harness.running import Running
from harness.untouched import read_state, remains
from programs.conftest import Bare
from sidestep.symbols.elf import ElfFile
from sidestep.target.process import procfs

pytestmark = pytest.mark.process

Run = Callable[..., Running]
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make namespaces and to change the root")


def count_a_run(sidestep: ModuleType, running: Running, pid: int, name: str, expected: object) -> None:
    """Attached by `pid`, it runs to its end as it does bare, with every call of `work` counted."""
    real = running.pid if pid == running.pid else procfs.choose(pid)
    before = read_state(real)
    with attached(sidestep, pid) as target:
        (probe,) = target.count(place(name, "work")).probes
        running.send()
        assert run_until_done(running)
        hits = probe.hits
    assert not remains(before, read_state(real))
    running.send()
    outcome = running.finish()
    assert comparable(outcome) == expected, str(outcome)
    assert hits == counts(outcome)["work"]


@pytest.mark.parametrize("way", ["default", "no-pie", "static", "static-pie", "musl", "musl-static"])
@pytest.mark.parametrize("replacement", ["none", "another program", "fifo"])
def test_a_program_whose_file_is_gone(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare, tmp_path: Path, way: str, replacement: str
) -> None:
    program = tmp_path / "count"
    shutil.copy(build("count", way), program)
    running = run(program, "wait")
    running.expect(READY)
    program.unlink()
    if replacement == "another program":
        shutil.copy(build("args"), program)
    elif replacement == "fifo":
        os.mkfifo(program)
    count_a_run(sidestep, running, running.pid, "count", comparable(bare("count", None, way)))


def test_a_library_that_was_replaced(sidestep: ModuleType, build: Builder, run: Run, tmp_path: Path) -> None:
    """As an update of packages does it: the process still runs the old one."""
    shutil.copy(build.library("plugin"), tmp_path / "plugin.so")
    script = (
        "import ctypes, sys; plugin = ctypes.CDLL(sys.argv[1]); print('ready', flush=True); input();"
        "print(sum(plugin.plugin_work(i) for i in range(100)), flush=True); input()"
    )
    python = shutil.which("python3")
    assert python
    running = run(python, "-c", script, tmp_path / "plugin.so")
    running.expect(READY)
    (tmp_path / "new").write_bytes(b"\x7fELF" + bytes(5000))
    (tmp_path / "new").rename(tmp_path / "plugin.so")
    with attached(sidestep, running.pid) as target:
        (probe,) = target.count("plugin:plugin_work").probes
        running.send()
        running.next_line()
        assert probe.hits == 100
    running.send()
    assert running.finish().status == 0


@pytest.fixture
def namespaces() -> None:
    words = ["unshare", "-Urmpf", "true"]
    if shutil.which("unshare") is None or subprocess.run(words, check=False, timeout=20).returncode:
        pytest.skip("no user namespaces here")


def inner(running: Running) -> tuple[int, int]:
    """The process below `unshare`: its pid, and the one that it has itself."""
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    status = Path(f"/proc/{children[0]}/status").read_text()
    found = re.search(r"^NSpid:.*\s(\d+)$", status, re.M)
    assert found
    return int(children[0]), int(found[1])


@pytest.mark.parametrize("way", ["default", "static"])
def test_other_namespaces(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare, namespaces: None, way: str
) -> None:
    running = run("unshare", "-Urmpf", build("count", way), "wait")
    running.expect(READY)
    pid, own = inner(running)
    assert own == 1
    count_a_run(sidestep, running, pid, "count", comparable(bare("count", None, way)))


def test_the_pid_that_a_process_has_in_its_own_namespace(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare, namespaces: None
) -> None:
    """Accepted where we have no process of that number and only one of others has it."""
    free = next(pid for pid in range(300, 4000000) if not procfs.is_used(pid))
    script = f"echo {free - 1} > /proc/sys/kernel/ns_last_pid; {build('count')} wait; exit $?"
    running = run("unshare", "-Urmpf", "--mount-proc", "sh", "-c", script)
    running.expect(READY)
    shell, _ = inner(running)
    outside = int(Path(f"/proc/{shell}/task/{shell}/children").read_text())
    assert procfs.read_status(outside).own_pid == free
    assert procfs.choose(free) == outside
    count_a_run(sidestep, running, free, "count", comparable(bare("count")))


def test_a_pid_that_several_namespaces_have(sidestep: ModuleType, run: Run, namespaces: None) -> None:
    free = next(pid for pid in range(300, 4000000) if not procfs.is_used(pid))
    script = f"echo {free - 1} > /proc/sys/kernel/ns_last_pid; sh -c 'echo ready; exec sleep 100'; exit"
    several = [run("unshare", "-Urmpf", "--mount-proc", "sh", "-c", script) for _ in range(2)]
    for running in several:
        running.expect(READY)
    with pytest.raises(sidestep.TargetError) as refusal:
        sidestep.attach(free)
    assert refusal.value.reason.name == "several-namespaces"
    for running in several:
        shell, _ = inner(running)
        assert Path(f"/proc/{shell}/task/{shell}/children").read_text().strip() in refusal.value.detail


@ROOT
def test_a_root_of_its_own_without_proc(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    shutil.copy(build("count", "static"), root / "count")
    running = run("chroot", root, "/count", "wait")
    running.expect(READY)
    count_a_run(sidestep, running, running.pid, "count", comparable(bare("count", None, "static")))


def objcopy(*words: str | Path) -> None:
    subprocess.run(["objcopy", *words], check=True, timeout=60)


def test_a_stripped_program_with_its_symbols_compressed_inside(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare, tmp_path: Path
) -> None:
    """As distributions build everything that they strip (.gnu_debugdata)."""
    whole, symbols, program = build("count"), tmp_path / "symbols", tmp_path / "count"
    objcopy("--only-keep-debug", whole, symbols)
    symbols.write_bytes(lzma.compress(symbols.read_bytes()))
    objcopy("--strip-all", f"--add-section=.gnu_debugdata={symbols}", whole, program)
    running = run(program, "wait")
    running.expect(READY)
    count_a_run(sidestep, running, running.pid, "count", comparable(bare("count")))


@ROOT
def test_symbols_that_lie_in_the_root_of_the_process(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare, tmp_path: Path
) -> None:
    """By build-id, below /usr/lib/debug of its own root and not of ours."""
    whole, root = build("count", "static"), tmp_path / "root"
    identifier = ElfFile.open(str(whole)).build_id
    assert identifier
    folder = root / "usr/lib/debug/.build-id" / identifier[:2]
    folder.mkdir(parents=True)
    objcopy("--only-keep-debug", whole, folder / f"{identifier[2:]}.debug")
    objcopy("--strip-all", whole, root / "count")
    running = run("chroot", root, "/count", "wait")
    running.expect(READY)
    count_a_run(sidestep, running, running.pid, "count", comparable(bare("count", None, "static")))


def test_code_in_anonymous_memory_is_refused(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare
) -> None:
    running = run(build("copied_text"), "wait")
    running.expect(READY)
    before = read_state(running.pid)
    with attached(sidestep, running.pid) as target, pytest.raises(sidestep.ProbeError) as refusal:
        target.count(place("copied_text", "work"))
    assert refusal.value.reason.name == "text-copied"
    assert not remains(before, read_state(running.pid))
    running.send()
    run_until_done(running)
    running.send()
    assert comparable(running.finish()) == comparable(bare("copied_text"))
