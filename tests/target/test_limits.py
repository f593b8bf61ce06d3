"""Limits of the target: reached in the middle, they are said, nothing stays, and the target goes on."""

from __future__ import annotations

import re
import resource
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harness.build import Builder
from harness.programs import counts, run_until_done
from harness.running import Running
from harness.untouched import State, differences, read_state
from sidestep import errors
from sidestep.errors import TargetError
from sidestep.events import layout
from sidestep.target.process import areas
from sidestep.target.process.process import attach
from sidestep.target.process.space import SMALLEST_ARENA

pytestmark = pytest.mark.process

Run = Callable[..., Running]


def start(build: Builder, run: Run, name: str, *arguments: object) -> tuple[Running, State]:
    running = run(build(name), *map(str, arguments), "wait")
    running.expect("ready")
    return running, read_state(running.pid)


def finish(running: Running, before: State, target: Any = None, probe: Any = None) -> None:
    """Nothing of ours is there, or with a target it goes; the program ends well, and was counted."""
    if target is None:
        assert not differences(before, read_state(running.pid))
    running.send()
    run_until_done(running)
    if target is not None:
        hits = probe.hits
        target.detach()
        assert not [each for each in differences(before, read_state(running.pid)) if "code" in each]
        assert not any("sidestep" in area.path for area in read_state(running.pid).areas)
    running.send()
    outcome = running.finish()
    assert outcome.status == 0, str(outcome)
    if target is not None:
        assert hits == counts(outcome)["work"]


def says(error: Exception, *words: str) -> bool:
    return all(word in str(error) for word in words) and str(error).count("\n") <= 2


def set_limit(running: Running, what: int, soft: int) -> tuple[int, int]:
    """The soft limit of the target; the old ones."""
    hard = resource.prlimit(running.pid, what)[1]
    return resource.prlimit(running.pid, what, (soft, hard))


def test_no_free_descriptor(sidestep: ModuleType, build: Builder, run: Run) -> None:
    running, before = start(build, run, "count")
    usual = set_limit(running, resource.RLIMIT_NOFILE, 3)
    with sidestep.attach(running.pid) as target, pytest.raises(TargetError) as caught:
        target.count("count:work")
    assert says(caught.value, "no free file descriptor")
    assert not differences(before, read_state(running.pid))
    set_limit(running, resource.RLIMIT_NOFILE, usual[0])
    target = sidestep.attach(running.pid)
    (probe,) = target.count("count:work").probes
    set_limit(running, resource.RLIMIT_NOFILE, 3)
    with pytest.raises(TargetError) as caught:  # the rings need one, too
        target.trace("count:work")
    assert says(caught.value, "no free file descriptor")
    assert target.probes == [probe]
    finish(running, before, target, probe)


def address_space(pid: int) -> int:
    found = re.search(r"^VmSize:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.M)
    assert found is not None
    return int(found[1]) << 10


@pytest.mark.parametrize("what", ["shared area", "arena", "rings"])
def test_no_address_space(sidestep: ModuleType, build: Builder, run: Run, what: str) -> None:
    running, before = start(build, run, "count")
    room = {
        "shared area": 0,
        "arena": layout.DATA_SIZE,
        "rings": layout.DATA_SIZE + 2 * SMALLEST_ARENA + layout.PROCESS_PAGE_SIZE,
    }[what]
    set_limit(running, resource.RLIMIT_AS, address_space(running.pid) + room)
    target = sidestep.attach(running.pid)
    if what == "rings":
        (probe,) = target.count("count:work").probes
        with pytest.raises(TargetError) as caught:
            target.trace("count:work")
        assert target.probes == [probe]
        finish(running, before, target, probe)
    else:
        with target, pytest.raises(TargetError) as caught:
            target.count("count:work")
        finish(running, before)
    assert says(caught.value, "limit of its memory")


@pytest.mark.parametrize("left", [1, 20])
def test_no_mapping_is_left(
    sidestep: ModuleType, build: Builder, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, left: int
) -> None:
    """Refused before anything is asked for; and where others were faster, when the kernel refuses it."""
    running, before = start(build, run, "many_maps", left + 1)
    target = sidestep.attach(running.pid)
    if left < 20:
        with pytest.raises(TargetError) as caught:
            target.count("many_maps:work")
        assert says(caught.value, "mappings are in use (vm.max_map_count)")
        assert not differences(before, read_state(running.pid))
    (tmp_path / "limit").write_text("1000000")
    monkeypatch.setattr(areas, "MAX_MAP_COUNT", tmp_path / "limit")
    if left < 20:
        with pytest.raises(TargetError) as caught:
            target.count("many_maps:work")
        assert says(caught.value, "vm.max_map_count")
        target.detach()
        finish(running, before)
    else:
        (probe,) = target.count("many_maps:work").probes
        finish(running, before, target, probe)


def test_no_space_within_reach(sidestep: ModuleType, build: Builder, run: Run) -> None:
    running, before = start(build, run, "full_space", 1)
    with sidestep.attach(running.pid) as target, pytest.raises(sidestep.SidestepError) as caught:
        target.count("full_space:work")
    assert caught.value.reason is errors.NO_SPACE_NEAR
    assert says(caught.value, "within 2 GiB")
    finish(running, before)


def test_hardly_any_space_within_reach(sidestep: ModuleType, build: Builder, run: Run) -> None:
    running, before = start(build, run, "full_space", 2)
    target = sidestep.attach(running.pid)
    (probe,) = target.count("full_space:work").probes
    with pytest.raises(sidestep.SidestepError) as caught:
        target.trace(*["full_space:work " + " ".join(f"f{number}=$arg1" for number in range(30))] * 300)
    assert caught.value.reason is errors.NO_SPACE_NEAR
    assert target.probes == [probe]
    finish(running, before, target, probe)


def test_a_32_bit_program(tmp_path: Path) -> None:
    """A file of our own, since no 32-bit compiler need be there: it waits in pause()."""
    entry, code = (
        0x0804_8054,
        bytes.fromhex(
            "b8 1d 00 00 00"  # mov $29, %eax
            "cd 80"  # int $0x80
            "eb f7"  # jmp back
        ),
    )
    size = 84 + len(code)
    header = struct.pack(
        "<4s5B7x2H5I6H",
        *(b"\x7fELF", 1, 1, 1, 0, 0),
        *(2, 3, 1, entry, 52, 0, 0),
        *(52, 32, 1, 0, 0, 0),
    )
    segment = struct.pack("<8I", 1, 0, 0x0804_8000, 0x0804_8000, size, size, 5, 0x1000)
    program = tmp_path / "small"
    program.write_bytes(header + segment + code)
    program.chmod(0o755)
    try:
        process = subprocess.Popen([program], process_group=0)
    except OSError as error:
        pytest.skip(f"this kernel runs no 32-bit programs: {error}")
    try:
        with pytest.raises(TargetError) as caught:
            attach(process.pid)
        assert caught.value.reason is errors.NOT_64_BIT
        assert says(caught.value, "x86-64", "64-bit")
    finally:
        process.kill()
        process.wait()
