"""Children that protect themselves: none is killed by a system call of ours, and none is forgotten."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from harness.build import Builder
from harness.programs import comparable, run_until_done
from harness.running import Outcome, Running
from harness.untouched import read_areas, read_code, read_state, remains
from sidestep.errors import SidestepError

Run = Callable[..., Running]
Bare = Callable[..., Outcome]
STRICT, FILTERED, NOT_DUMPABLE = 1, 2, 3
NOBODY = 65534


def child_of(pid: int) -> int:
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def finish(running: Running, expected: Outcome) -> None:
    running.send()
    outcome = running.finish()
    assert comparable(outcome) == comparable(expected), str(outcome)


@pytest.mark.parametrize("how", [STRICT, FILTERED])
def test_a_child_that_filters_its_system_calls(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare, how: int
) -> None:
    running = run(build("guarded_child"), str(how), "wait")
    running.expect("ready")
    before = read_state(running.pid)
    target = sidestep.attach(running.pid)
    (probe,) = target.count("guarded_child:work").probes
    running.send()
    run_until_done(running)
    child = child_of(running.pid)
    assert probe.hits_by_pid == {child: 6}
    with pytest.raises(SidestepError) as problem:
        target.detach()
    assert f"process {child}" in str(problem.value)
    assert str(running.pid) not in str(problem.value)
    assert not remains(before, read_state(running.pid))
    code = read_code(child, read_areas(child))
    assert {path: code[path] for path in before.code} == before.code
    done = sidestep.clean(child)
    assert not done.complete
    assert "filters" in done.text
    finish(running, bare("guarded_child", how))


@pytest.mark.parametrize("how", [STRICT, FILTERED])
def test_probes_go_while_it_lives(
    sidestep: ModuleType, build: Builder, run: Run, bare: Bare, how: int
) -> None:
    """Unregistering writes into the child's memory only, and its memory is left when it has ended."""
    running = run(build("guarded_child"), str(how), "wait")
    running.expect("ready")
    before = read_state(running.pid)
    with sidestep.attach(running.pid) as target:
        (probe,) = target.count("guarded_child:work").probes
        running.send()
        run_until_done(running)
        target.unregister_kprobe(probe)
        child = child_of(running.pid)
        code = read_code(child, read_areas(child))
        assert {path: code[path] for path in before.code} == before.code
        finish(running, bare("guarded_child", how))


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that everybody may enter."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
    yield folder
    shutil.rmtree(folder)


# What is imported later must not lie in a folder that only root may enter.
AS_NOBODY = f"""
import os, sys
from sidestep import SidestepError, attach
"\\n".encode("unicode_escape")
os.setgroups([])
os.setresgid({NOBODY}, {NOBODY}, {NOBODY})
os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
target = attach(int(sys.argv[1]))
target.count("guarded_child:work")
print("armed", flush=True)
sys.stdin.readline()
try:
    target.detach()
except SidestepError as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become two other users")
def test_a_child_that_cannot_be_looked_at(build: Builder, run: Run, bare: Bare, shared_folder: Path) -> None:
    program = shutil.copy(build("guarded_child"), shared_folder)

    def start(words: list[str], **options: object) -> subprocess.Popen[bytes]:
        options["cwd"] = "/"
        return subprocess.Popen(words, process_group=0, user=NOBODY, group=NOBODY, extra_groups=[], **options)  # type: ignore[call-overload,no-any-return]

    running = run(program, str(NOT_DUMPABLE), "wait", start=start)
    running.expect("ready")
    words = [sys.executable, "-c", AS_NOBODY, str(running.pid)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as controller:
        assert controller.stdout is not None
        assert controller.stdin is not None
        assert controller.stdout.readline() == "armed\n"
        running.send()
        run_until_done(running)
        child = child_of(running.pid)
        told, _ = controller.communicate("\n", timeout=30)
    assert f"process {child}: " in told
    assert f"sidestep clean -p {child}" in told
    assert str(running.pid) not in told
    assert any("sidestep" in area.path for area in read_areas(child))
    finish(running, bare("guarded_child", NOT_DUMPABLE))
