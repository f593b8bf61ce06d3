"""What the threads of a process have at their fs base: whether it identifies them, and where their tid is."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from sidestep.target.process.process import Window

GLIBC_TID_OFFSET = 0x2D0  # struct pthread: behind the 704 bytes of tcbhead_t and a list
THREAD_BLOCK = 0x400


@dataclass(frozen=True, slots=True)
class ThreadFacts:
    """`by_thread`: fs:0 holds the fs base itself, and each thread has its own (the ABI's thread control
    block). `tid_offset`: where the tid is from there; None where it was not verified."""

    by_thread: bool
    tid_offset: int | None


def thread_facts(window: Window) -> ThreadFacts:
    """Looked at in all stopped threads."""
    blocks: dict[int, bytes] = {}
    for thread in window:
        base = thread.registers.fs_base
        block = window.memory.read_available(base, THREAD_BLOCK) if base else b""
        if len(block) < 8 or struct.unpack_from("<Q", block)[0] != base or base in blocks:
            return ThreadFacts(False, None)
        blocks[base] = block + bytes(THREAD_BLOCK - len(block))
    tids = {thread.registers.fs_base: thread.tid for thread in window}
    offset = GLIBC_TID_OFFSET
    for base, block in blocks.items():
        if struct.unpack_from("<I", block, offset)[0] != tids[base]:
            return ThreadFacts(True, None)
    return ThreadFacts(True, offset)
