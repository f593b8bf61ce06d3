"""The modules of running processes, of every kind, and which code they really call."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.build import Builder
from harness.running import Running
from harness.samples import listed_functions, output_of
from sidestep import errors
from sidestep.errors import ProbeError, TargetError
from sidestep.maps import read_maps
from sidestep.spec import Where
from sidestep.symbols import mapped
from sidestep.symbols.content import Reader
from sidestep.symbols.elf import ElfFile
from sidestep.symbols.ifunc import chosen_variant
from sidestep.symbols.mapped import find_images
from sidestep.symbols.modules import Module, read_modules
from sidestep.symbols.resolve import resolve, symbolize
from sidestep.target.process.launch import launch

pytestmark = pytest.mark.process

Run = Callable[..., Running]


def reader(pid: int) -> Reader:
    path = f"/proc/{pid}/mem"

    def read(address: int, size: int) -> bytes:
        with open(path, "rb", buffering=0) as memory:
            return os.pread(memory.fileno(), size, address)

    return read


def modules_of(running: Running) -> list[Module]:
    return read_modules(running.pid, reader(running.pid))


def waiting(run: Run, program: Path, *words: str | Path, **options: object) -> Running:
    """The program of tests/programs, at the place where it waits before it starts its work."""
    running = run(*words, program, "10", "wait", **options)
    running.expect("ready")
    return running


def address_in(program: Path, name: str) -> int:
    return next(symbol.address for symbol in listed_functions(program) if symbol.name == name)


@pytest.mark.parametrize(
    "kind", ["default", "no-pie", "static", "static-pie", "stripped", "musl", "musl-static"]
)
def test_the_main_program_is_first(build: Builder, run: Run, kind: str) -> None:
    program = build("count", kind)
    running = waiting(run, program)
    modules = modules_of(running)
    main = modules[0]
    assert (main.name, main.path, main.is_main) == ("count", str(program), True)
    assert [module.is_main for module in modules[1:]] == [False] * (len(modules) - 1)
    assert modules[-1].name == "[vdso]"
    dynamic = "static" not in kind
    assert any(module.name.startswith(("libc.so", "ld-musl")) for module in modules) == dynamic
    # What the file says about the entry point is where the kernel started it.
    fields = Path(f"/proc/{running.pid}/auxv").read_bytes()
    entry = next(
        int.from_bytes(fields[at + 8 : at + 16], "little")
        for at in range(0, len(fields), 16)
        if int.from_bytes(fields[at : at + 8], "little") == 9
    )
    assert main.bias + main.elf.entry == entry
    assert entry in main.text[0] or any(entry in text for text in main.text)
    data = reader(running.pid)
    for module in modules:
        for text, own in zip(module.text, module.elf.text, strict=True):
            assert data(text.start, text.size) == module.elf.read(own.start, own.size)


def test_all_executable_files_are_modules_at_their_places(run: Run) -> None:
    python = shutil.which("python3")
    assert python is not None
    running = run(python, "-c", "import ctypes, ssl, sqlite3; print('ready', flush=True); input()")
    running.expect("ready")
    modules = modules_of(running)
    mappings = [mapping for mapping in read_maps(running.pid) if "x" in mapping.perms and mapping.inode]
    assert {module.path for module in modules if module.name != "[vdso]"} == {
        mapping.path for mapping in mappings
    }
    for mapping in mappings:
        module = next(module for module in modules if module.path == mapping.path)
        assert mapping.start in module
        assert any(text.start < mapping.end and mapping.start < text.end for text in module.text)
    # In load order: a module that needs another stands before or after it as the loader did it.
    names = [module.name for module in modules]
    assert names.index("libc.so.6") < next(at for at, name in enumerate(names) if name.startswith("_ctypes"))
    again = read_modules(running.pid, reader(running.pid), modules)
    assert [id(module) for module in again] == [id(module) for module in modules]


def test_a_program_that_was_given_to_the_loader_is_the_main_program(build: Builder, run: Run) -> None:
    program = build("count")
    loader = ElfFile.open(str(program)).interpreter
    assert loader is not None
    running = waiting(run, program, loader)
    modules = modules_of(running)
    assert modules[0].path == str(program)
    [location] = resolve(modules, Where(None, "main"), reader(running.pid))
    assert location.module is modules[0]


def test_before_the_loader_has_run(build: Builder, run: Run) -> None:
    """A process that stopped in exec: only the program, its loader and the vdso are there."""

    program = build("count")
    launched = launch([str(program)])
    try:
        modules = read_modules(launched.pid, reader(launched.pid))
        assert modules[0].path == str(program)
        assert not any(module.name == "libc.so.6" for module in modules)
    finally:
        launched.resume()
        launched.wait(10)


def test_deleted_files_are_still_read(build: Builder, run: Run, tmp_path: Path) -> None:
    program = tmp_path / "gone program"
    shutil.copy(build("count"), program)
    running = waiting(run, program)
    program.unlink()
    for replacement in (None, b"not an ELF file"):
        if replacement:
            program.write_bytes(replacement)
        main = modules_of(running)[0]
        assert (main.name, main.path, main.deleted, main.is_main) == (
            "gone program",
            str(program),
            True,
            True,
        )
        assert main.functions.named("main")
        assert ElfFile.open(main.file).build_id == main.elf.build_id


def test_a_file_that_was_replaced_is_not_taken_for_the_mapped_one(
    build: Builder, run: Run, tmp_path: Path
) -> None:
    program = tmp_path / "program"
    shutil.copy(build("count"), program)
    running = waiting(run, program)
    other = tmp_path / "other"
    shutil.copy(build("args"), other)
    other.rename(program)
    main = modules_of(running)[0]
    assert main.elf.build_id == ElfFile.open(str(build("count"))).build_id


@pytest.mark.parametrize("readable", ["map_files", "exe", "nothing"])
def test_ways_to_open_a_file_that_is_gone(
    build: Builder, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, readable: str
) -> None:
    """Without the privilege for map_files, and without any file: then the image in memory has to do."""
    program = tmp_path / "program"
    library = tmp_path / "plugin.so"
    shutil.copy(build("dlclose"), program)
    shutil.copy(build.library("plugin"), library)
    running = waiting(run, program, environment={"PLUGIN": str(library)})
    program.unlink()
    opened = ElfFile.open

    def open_some(path: str, root: str | None = None) -> ElfFile:
        if (
            str(tmp_path) in path
            or ("map_files" in path and readable != "map_files")
            or (path.endswith("exe") and readable == "nothing")
        ):
            raise TargetError(path, errors.ELF_MALFORMED, "Permission denied")
        return opened(path, root)

    monkeypatch.setattr(mapped.ElfFile, "open", open_some)
    modules = modules_of(running)
    main = modules[0]
    assert main.name == "program"
    assert main.is_main
    assert main.bias + main.elf.entry in main
    assert main.functions.containing(main.elf.entry) is not None
    assert main.elf.build_id == opened(str(build("dlclose"))).build_id
    if readable == "nothing":
        assert main.file == ""
        whole = Module(str(program), "", opened(str(build("dlclose"))))
        # Without section headers only the dynamic symbols and the unwind entries are left.
        assert set(main.functions.frames.starts) == set(whole.functions.frames.starts)
        assert list(main.elf.relative_targets) == list(whole.elf.relative_targets)


def test_a_file_at_the_path_that_is_another_one_is_said(
    build: Builder, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the mapped file cannot be opened (without CAP_SYS_ADMIN): both build-ids are told."""
    program = tmp_path / "program"
    shutil.copy(build("count"), program)
    running = waiting(run, program)
    opened = ElfFile.open

    def open_few(path: str, root: str | None = None) -> ElfFile:
        if "map_files" in path or path.endswith("exe"):
            raise TargetError(path, errors.ELF_MALFORMED, "Permission denied")
        return opened(path, root)

    monkeypatch.setattr(mapped.ElfFile, "open", open_few)
    mine, other = opened(str(program)).build_id, opened(str(build("args"))).build_id
    for replacement in (build("args"), None):
        program.unlink()
        if replacement is not None:
            shutil.copy(replacement, program)
        module = modules_of(running)[0]
        assert (module.deleted, module.file, module.elf.build_id) == (True, "", mine)
        if replacement is not None:
            assert f"build-id {other} there, {mine} in memory" in module.note
        else:
            assert "cannot be opened" in module.note
        with pytest.raises(ProbeError) as unknown:
            resolve([module], Where("program", "no_such_function"), reader(running.pid))
        assert module.note in str(unknown.value)


@pytest.mark.parametrize("kind", ["fifo", "folder", "link to itself", "device"])
def test_something_else_stands_at_the_path(build: Builder, run: Run, tmp_path: Path, kind: str) -> None:
    """Nothing waits for somebody to write into a FIFO, and no device is opened."""
    program = tmp_path / "program"
    shutil.copy(build("count"), program)
    running = waiting(run, program)
    program.unlink()
    if kind == "fifo":
        os.mkfifo(program)
    elif kind == "folder":
        program.mkdir()
    elif kind == "device":
        try:
            os.mknod(program, 0o600 | stat.S_IFCHR, os.makedev(10, 130))  # /dev/watchdog
        except PermissionError:
            pytest.skip("only root makes devices")
    else:
        program.symlink_to(program)
    main = modules_of(running)[0]
    assert (main.path, main.deleted, main.is_main) == (str(program), True, True)
    assert main.functions.named("main")


@pytest.mark.parametrize(
    "name",
    [
        "a b", " leading", "with (deleted)", "new\nline", "back\\012slash", "esc\x1b[31mape", "tab\there",
        "umläut", b"latin\xe4".decode("utf-8", "surrogateescape"), "[vdso]", "[heap]", "a" * 250,
    ],
)  # fmt: skip
def test_programs_with_odd_names(build: Builder, run: Run, tmp_path: Path, name: str) -> None:
    program = tmp_path / name
    shutil.copy(build("count"), program)
    running = waiting(run, program)
    for deleted in (False, True):
        main = modules_of(running)[0]
        assert main.is_main
        assert main.name.isprintable()
        assert main.functions.named("main")
        assert main.deleted is deleted
        if "\\" not in name:  # the kernel writes \\012 for a newline, and a backslash as it is
            assert main.path == str(program)
        if not deleted:
            program.unlink()


def test_code_that_was_copied_into_anonymous_memory(build: Builder, run: Run) -> None:
    """Code that was moved into huge pages is found, with its name."""
    running = waiting(run, build("copied_text"))
    main = modules_of(running)[0]
    assert main.name == "copied_text"
    assert main.bias + main.elf.entry in main
    maps = read_maps(running.pid)
    (copy,) = (m for m in maps if "x" in m.perms and not m.inode and not m.path)
    assert copy.start in main
    # In pages of hugetlbfs the kernel shows a file that is none.
    huge = replace(copy, path="/anon_hugepage (deleted)", inode=30, device="00:10")
    changed = [huge if mapping is copy else mapping for mapping in maps]
    images = find_images(running.pid, changed, reader(running.pid))
    (same,) = (image for image in images if image.file.path == main.path)
    assert (same.bias, same.ranges) == (main.bias, main.ranges)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a mount namespace")
def test_another_mount_namespace(build: Builder, run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    program = folder / "program"
    script = f"mount -t tmpfs none {folder} && cp {build('count')} {program} && exec {program} 10 wait"
    if subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True, timeout=20).returncode:
        pytest.skip("no mount namespaces here")
    running = run("unshare", "-m", "sh", "-c", script)
    running.expect("ready")
    assert not program.exists()
    main = modules_of(running)[0]
    assert (main.path, main.deleted) == (str(program), False)
    assert main.functions.named("main")
    assert ElfFile.open(main.file).build_id == ElfFile.open(str(build("count"))).build_id


@pytest.mark.parametrize("kind", ["default", "no-pie", "static", "static-pie"])
def test_the_variant_of_an_ifunc_that_is_called(build: Builder, run: Run, kind: str) -> None:
    program = build("ifunc", kind)
    running = waiting(run, program)
    read = reader(running.pid)
    modules = modules_of(running)
    [location] = resolve(modules, Where(None, "own"), read)
    assert location.address == modules[0].bias + address_in(program, "fast")
    assert location.note == "own is an IFUNC: fast"
    for name in ("memcpy", "strlen", "memcmp"):
        [location] = resolve(modules, Where(None, name), read)
        assert location.note is not None
        assert location.note.startswith(f"{name} is an IFUNC: ")
        assert location.function is not None
        assert location.function.kind == "func"
        if "static" in kind:
            stem = location.function.name
            assert stem.lstrip("_").startswith((name, "memmove", "mem"))


def test_the_vdso(build: Builder, run: Run) -> None:
    running = waiting(run, build("count"))
    modules = modules_of(running)
    [location] = resolve(modules, Where("[vdso]", "clock_gettime"), reader(running.pid))
    assert location.module.name == "[vdso]"
    [same] = resolve(modules, Where("vdso", "clock_gettime"), reader(running.pid))
    assert same.address == location.address
    assert symbolize(modules, location.address + 3) == "clock_gettime+0x3"
    [plain] = resolve(modules, Where(None, "clock_gettime"), reader(running.pid))
    assert plain.module.name.startswith("libc")


def test_gettimeofday_is_in_the_vdso_or_said_to_be_unknown(build: Builder, run: Run) -> None:
    running = waiting(run, build("count"))
    modules = modules_of(running)
    libc = next(module for module in modules if module.name == "libc.so.6")
    kinds = [function.kind for function in libc.functions.named("gettimeofday")]
    if kinds != ["ifunc"]:
        pytest.skip("no IFUNC in this C library")
    read = reader(running.pid)
    known = chosen_variant(modules, libc, libc.functions.named("gettimeofday")[0], read)
    if known is None:
        with pytest.raises(ProbeError):
            resolve(modules, Where("libc", "gettimeofday"), read)
    else:
        [location] = resolve(modules, Where("libc", "gettimeofday"), read)
        assert location.module.name in ("[vdso]", "libc.so.6")
        assert location.module is known.module


def test_addresses_of_the_loader_agree(build: Builder, run: Run) -> None:
    """gdb's view of where things are."""
    if shutil.which("gdb") is None:
        pytest.skip("gdb is not installed")
    program = build("count", "debug")
    running = waiting(run, program)
    modules = modules_of(running)
    words = [
        "gdb",
        "-p",
        str(running.pid),
        "-batch",
        "-nx",
        "-ex",
        "info address malloc",
        "-ex",
        "info address main",
    ]
    text = output_of(*words)
    found = dict(re.findall(r'Symbol "(\w+)" is (?:a function )?at (?:address )?(0x\w+)', text))
    if not found:
        pytest.skip("gdb cannot attach here")
    for name, address in found.items():
        [location] = resolve(modules, Where(None, name), reader(running.pid))
        assert location.address == int(address, 16)


def test_processes_that_are_gone(run: Run) -> None:
    running = run("true")
    running.finish()
    with pytest.raises(TargetError):
        read_modules(running.pid, reader(running.pid))
