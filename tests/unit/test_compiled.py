"""Machine code of handlers: object files, the cache, and the process that compiles."""

from __future__ import annotations

import os
import random
import signal
from importlib import metadata
from pathlib import Path

import pytest

from sidestep import errors, native, private_files
from sidestep.compiler import compiled
from sidestep.compiler.compiled import KIND, compile_native
from sidestep.compiler.helper import HELPER, Helper
from sidestep.compiler.lower import lower
from sidestep.compiler.objects import ObjectError, read_object
from sidestep.errors import ProbeError


@native
def handler(p, regs):  # type: ignore[no-untyped-def]
    regs.ax = regs.di // (regs.si | 1)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = private_files.directory(KIND)
    assert folder is not None
    return folder


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the compiler's process is asked."""
    asked: list[str] = []
    ask = HELPER.compile

    def note(text: str) -> bytes:
        asked.append(text)
        return ask(text)

    monkeypatch.setattr(compiled.HELPER, "compile", note)
    return asked


def test_a_second_run_needs_no_compiler(cache: Path, requests: list[str]) -> None:
    first = compile_native(handler.representation)
    (entry,) = cache.iterdir()
    assert entry.stat().st_mode & 0o777 == 0o600
    assert compile_native(handler.representation) == first
    assert len(requests) == 1


def pretend_version(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    """As if this version of LLVM was installed; None: as if there was none."""

    def find(name: str) -> str:
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", find)


def test_without_llvm_what_any_version_has_compiled_is_used(
    cache: Path, requests: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = compile_native(handler.representation)
    pretend_version(monkeypatch, None)
    assert compile_native(handler.representation) == first
    assert len(requests) == 1
    pretend_version(monkeypatch, "999.0")
    assert compile_native(handler.representation) == first
    assert len(requests) == 2


def test_without_llvm_and_without_code_it_says_what_to_install(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_version(monkeypatch, None)
    with pytest.raises(ProbeError) as caught:
        compile_native(handler.representation)
    assert caught.value.reason is errors.NO_COMPILER
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    readme = Path(__file__).parents[2] / "README.md"
    assert f"`{errors.NO_COMPILER.hint}`" in readme.read_text()


def test_a_processor_that_cannot_exchange_two_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_processor", lambda: "model name : old\nflags : fpu cx8 sse2\n")
    compiled._surroundings.cache_clear()
    with pytest.raises(ProbeError, match="without cmpxchg16b"):
        compile_native(handler.representation)


def test_a_damaged_entry_is_compiled_again(cache: Path, requests: list[str]) -> None:
    first = compile_native(handler.representation)
    (entry,) = cache.iterdir()
    whole = entry.read_bytes()
    for at in [*range(0, len(whole), 7), len(whole) - 1]:
        entry.write_bytes(whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :])
        assert compile_native(handler.representation) == first, at
    for size in (0, 8, len(whole) - 1):
        entry.write_bytes(whole[:size])
        assert compile_native(handler.representation) == first, size
    entry.write_bytes(whole + b"\0")
    assert compile_native(handler.representation) == first
    assert len(requests) == 1 + len(range(0, len(whole), 7)) + 1 + 4


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_an_entry_that_others_can_write_is_not_trusted(cache: Path, requests: list[str], mode: int) -> None:
    compile_native(handler.representation)
    (entry,) = cache.iterdir()
    entry.chmod(mode)
    compile_native(handler.representation)
    assert len(requests) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
def test_an_entry_of_another_user_is_not_trusted(cache: Path, requests: list[str]) -> None:
    compile_native(handler.representation)
    (entry,) = cache.iterdir()
    os.chown(entry, 65534, 65534)
    compile_native(handler.representation)
    assert len(requests) == 2


def test_a_link_is_not_followed(cache: Path, requests: list[str], tmp_path: Path) -> None:
    compile_native(handler.representation)
    (entry,) = cache.iterdir()
    entry.rename(tmp_path / "elsewhere")
    entry.symlink_to(tmp_path / "elsewhere")
    compile_native(handler.representation)
    assert len(requests) == 2


def test_mutated_object_files() -> None:
    """Whatever the file holds: code, or ObjectError."""
    whole = HELPER.compile(lower(handler.representation).text)
    assert read_object(whole).size > 0
    source = random.Random(5)
    refused = 0
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(source.randint(1, 4)):
            at = source.randrange(64) if source.random() < 0.3 else source.randrange(len(data))
            data[at] = source.choice((0, 1, 0x7F, 0x80, 0xFF, source.randrange(256)))
        cut = source.randrange(len(data)) if source.random() < 0.2 else len(data)
        try:
            code = read_object(bytes(data[:cut]))
        except ObjectError:
            refused += 1
        else:
            assert code.entry + code.size <= len(code.code)
    assert refused > 300


def test_the_process_dies_in_the_middle() -> None:
    helper = Helper()
    text = lower(handler.representation).text
    whole = helper.compile(text)
    process = helper._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    with pytest.raises(ProbeError) as caught:
        helper.compile(text)
    assert caught.value.reason is errors.COMPILER_FAILED
    assert "its process ended" in str(caught.value)
    assert helper.compile(text) == whole
    helper._stop()


def test_the_process_does_not_answer() -> None:
    """Stopped at each point: before it reads, and with an answer that is larger than a pipe."""
    text = lower(handler.representation).text
    whole = HELPER.compile(text)
    helper = Helper(longest=0.5)
    process = helper._started()
    os.kill(process.pid, signal.SIGSTOP)
    for request in (text, text + ";" * (1 << 20)):
        with pytest.raises(ProbeError, match="took too long"):
            helper.compile(request)
        assert helper._process is None
        assert process.wait() == -signal.SIGKILL
        process = helper._started()
        os.kill(process.pid, signal.SIGSTOP)
    os.kill(process.pid, signal.SIGCONT)
    helper._longest = 60
    assert helper.compile(text) == whole
    helper._stop()


def test_llvm_ends_its_process_over_bad_assembly() -> None:
    helper = Helper()
    bad = 'define i64 @handler() {\n  call void asm sideeffect "no such thing", ""()\n  ret i64 0\n}\n'
    with pytest.raises(ProbeError) as caught:
        helper.compile(bad)
    assert caught.value.reason is errors.COMPILER_FAILED
    assert helper.compile(lower(handler.representation).text)
    helper._stop()


def test_text_that_llvm_refuses() -> None:
    helper = Helper()
    with pytest.raises(ProbeError, match="expected"):
        helper.compile("define i64 @handler( {")
    assert helper.compile(lower(handler.representation).text)
    helper._stop()


def test_an_interrupted_request_does_not_answer_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    helper = Helper()
    text = lower(handler.representation).text
    whole = helper.compile(text)

    def interrupted(*_: object) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Helper, "_ask", interrupted)
        with pytest.raises(KeyboardInterrupt):
            helper.compile(text)
    assert helper._process is None
    assert helper.compile(text) == whole
    helper._stop()


def test_a_chain_of_comparisons_makes_no_table() -> None:
    @native
    def chain(p, regs):  # type: ignore[no-untyped-def]
        x = regs.di
        if x == 0:
            y = 11
        elif x == 1:
            y = 35
        elif x == 2:
            y = 351
        elif x == 3:
            y = 352
        elif x == 4:
            y = 12
        elif x == 5:
            y = 17
        else:
            y = 3
        regs.ax = y

    assert compile_native(chain.representation).code.code
