"""What the threads of a process have at their fs base: whether it identifies them, and where their tid is."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from sidestep.target.process.process import Window

GLIBC_TID_OFFSET = 0x2D0  # struct pthread: behind the 704 bytes of tcbhead_t and a list
THREAD_BLOCK = 0x400
CPU_ID = 4  # in struct rseq, behind cpu_id_start


@dataclass(frozen=True, slots=True)
class ThreadFacts:
    """`by_thread`: fs:0 holds the fs base itself, and each thread has its own (the ABI's thread control
    block). `tid_offset`, `cpu_offset`: where the tid is from there, and where the kernel keeps the number of
    the CPU (rseq); None where that was not verified."""

    by_thread: bool
    tid_offset: int | None
    cpu_offset: int | None = None


def thread_facts(window: Window, rseq_offset: int | None) -> ThreadFacts:
    """Looked at in all stopped threads. `rseq_offset` is where their rseq areas are said to be."""
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
    return ThreadFacts(True, offset, _cpu_offset(window, rseq_offset))


def _cpu_offset(window: Window, rseq_offset: int | None) -> int | None:
    """The offset of cpu_id in struct rseq (<linux/rseq.h>), if every thread has it registered."""
    if rseq_offset is None:
        return None
    for thread in window:
        raw = window.memory.read_available(thread.registers.fs_base + rseq_offset + CPU_ID, 4)
        if len(raw) < 4 or struct.unpack("<i", raw)[0] < 0:
            return None
    return rseq_offset + CPU_ID
