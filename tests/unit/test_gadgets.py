"""What remote system calls borrow of a program's own code."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator

import pytest

from sidestep import errors
from sidestep.errors import TargetError
from sidestep.target.process.memory import ProcessMemory
from sidestep.target.process.remote import POP_RAX_RET, RESTORERS, SYSCALL_RET, find_gadgets


@pytest.fixture
def memory() -> Iterator[ProcessMemory]:
    memory = ProcessMemory(os.getpid())
    yield memory
    memory.close()


def at(content: bytes) -> tuple[mmap.mmap, tuple[int, int]]:
    """A page with the content, and where it is."""
    page = mmap.mmap(-1, mmap.PAGESIZE)
    page[: len(content)] = content
    start = ctypes.addressof(ctypes.c_char.from_buffer(page))
    return page, (start, start + mmap.PAGESIZE)


@pytest.mark.parametrize(
    "content", [b"", SYSCALL_RET, POP_RAX_RET, RESTORERS[0]], ids=lambda text: text.hex()
)
def test_code_without_them_is_refused(memory: ProcessMemory, content: bytes) -> None:
    _page, span = at(content)
    with pytest.raises(TargetError) as refused:
        find_gadgets(memory, [span])
    assert refused.value.reason is errors.NO_GADGET


def test_they_may_be_in_different_files(memory: ProcessMemory) -> None:
    _first, one = at(b"\xcc" + SYSCALL_RET)
    _second, other = at(b"\xcc" * 5 + RESTORERS[0])
    found = find_gadgets(memory, [one, other])
    assert (found.syscall_ret, found.restorer) == (one[0] + 1, other[0] + 5)
