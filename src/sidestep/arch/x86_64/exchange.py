"""Changes in one step of memory that the controller shares with a target: the processor's own, in a few
instructions that the controller has mapped for itself.

Python has no such operations, and anything else could lose what the target writes at the same moment.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from functools import cache
from typing import Final, NamedTuple

EXCHANGE_PAIR: Final = bytes.fromhex(
    "53"  # push %rbx
    "4889f0"  # mov %rsi, %rax
    "4889cb"  # mov %rcx, %rbx
    "4c89c1"  # mov %r8, %rcx
    "f0480fc70f"  # lock cmpxchg16b (%rdi)
    "0f94c0"  # sete %al
    "5b"  # pop %rbx
    "c3"  # ret
)
"""bool exchange_pair(u64 pair[2], old low, old high, new low, new high), by the System V ABI (3.2.3)."""

ADD: Final = bytes.fromhex(
    "f0480137"  # lock add %rsi, (%rdi)
    "c3"  # ret
)
"""void add(u64 *word, amount)."""


class _Functions(NamedTuple):
    pair: Callable[..., bool]
    add: Callable[..., None]


@cache
def _functions() -> _Functions:
    """Never writable and executable at once; the mapping stays as long as the controller."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    descriptor = os.memfd_create("sidestep-exchange", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, EXCHANGE_PAIR + ADD)
        protection = mmap.PROT_READ | mmap.PROT_EXEC
        address = libc.mmap(None, mmap.PAGESIZE, protection, mmap.MAP_PRIVATE, descriptor, 0)
    finally:
        os.close(descriptor)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "no memory for code of the controller's own")
    word = ctypes.c_uint64
    pair = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, *[word] * 4)(address)
    add = ctypes.CFUNCTYPE(None, ctypes.c_void_p, word)(address + len(EXCHANGE_PAIR))
    return _Functions(pair, add)


def exchange_pair(words: memoryview, old: tuple[int, int], new: tuple[int, int]) -> bool:
    """Set two words, at a multiple of 16, if they are `old`: whether that was so."""
    pair = (ctypes.c_uint64 * 2).from_buffer(words)
    try:
        return _functions().pair(ctypes.addressof(pair), *old, *new)
    finally:
        del pair


def add(words: memoryview, amount: int) -> None:
    """Add to a word in one step, modulo 2**64."""
    word = ctypes.c_uint64.from_buffer(words)
    try:
        _functions().add(ctypes.addressof(word), amount)
    finally:
        del word
