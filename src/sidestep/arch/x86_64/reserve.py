"""The routine by which native handlers get a place in a ring.

The same steps as recording.py has for events of fetch arguments, with the size known at run time only.
"""

from __future__ import annotations

from typing import Final

from sidestep.arch.x86_64.reading import emit, restore, save
from sidestep.arch.x86_64.recording import (
    BLOCK_SHIFT,
    CPU_MASK,
    RESERVATION_TRIES,
    Rings,
    ask_tid,
    jump_unless_known,
    load_cpu,
    point_to_ring,
)
from sidestep.arch.x86_64.runtime import Runtime
from sidestep.arch.x86_64.shapes import (
    RDTSC,
    RET,
    add,
    and_,
    at,
    cmov,
    cmp,
    cmpxchg,
    dec,
    fs,
    inc,
    lea,
    mov,
    or_,
    shl,
    shr,
    sub,
    xor,
)
from sidestep.arch.x86_64.writer import Assembler
from sidestep.events import layout

_SAVED: Final = ("rsi", "rdi", "r8", "r9")


def reserve(assembler: Assembler, runtime: Runtime, rings: Rings, tid_offset: int | None) -> int:
    """Emit the routine; returns its address.

    rax = the thread's counter block, rcx = the record's first word with PENDING_MAGIC: rax = the record with
    its header filled in, or 0, and the event is counted as lost. Clobbers rcx, rdx, r11 and the flags.
    """
    start = assembler.label("reserve")
    save(assembler, _SAVED)
    emit(assembler, mov("rdi", "rcx"), mov("esi", "ecx"), shr("esi", 16), shl("esi", 3), mov("r9", "rax"))
    emit(
        assembler,
        mov("rdx", runtime.counters(layout.FIRST_FREE_BLOCK)),
        sub("rax", "rdx"),
        shr("rax", BLOCK_SHIFT),
        cmp("rax", rings.threads),
    )
    assembler.jump_if("ae", "shared ring")
    assembler.emit(mov("rcx", "rax"))
    point_to_ring(assembler, rings, rings.count)
    _claim(assembler, rings, "own", lock=False)
    assembler.label("shared ring")
    load_cpu(assembler, rings.cpu_number)
    emit(
        assembler,
        xor("edx", "edx"),
        and_("ecx", CPU_MASK),
        cmp("ecx", rings.count),
        cmov("ae", "ecx", "edx"),
    )
    point_to_ring(assembler, rings, 0)
    _claim(assembler, rings, "shared", lock=True)

    assembler.label("ring is full")
    emit(assembler, shr("rdi", 32), mov("rax", runtime.data + layout.lost_offset(0)), shl("rdi", 3))
    emit(assembler, add("rax", "rdi"), inc(at("rax"), lock=True), xor("eax", "eax"))
    restore(assembler, _SAVED)
    assembler.raw(RET)

    assembler.label("fill header")
    assembler.emit(mov(at("r8"), "rdi"))
    assembler.raw(RDTSC)
    emit(assembler, shl("rdx", 32), or_("rax", "rdx"), mov(at("r8", 8), "rax"))
    if tid_offset is not None:
        jump_unless_known(assembler, runtime, "r9", "unknown thread")
        assembler.emit(mov("eax", fs(tid_offset)))
        assembler.jump("tid is known")
        assembler.label("unknown thread")
    ask_tid(assembler)
    assembler.label("tid is known")
    assembler.emit(mov(at("r8", 16), "eax"))
    load_cpu(assembler, rings.cpu_number)
    emit(
        assembler,
        shl("ecx", layout.RECORD_CPU_SHIFT),
        mov("rax", runtime.process_page),
        or_("ecx", at("rax", layout.PROCESS_PID_OFFSET)),
        mov(at("r8", 20), "ecx"),
        mov("rax", "r8"),
    )
    restore(assembler, _SAVED)
    assembler.raw(RET)
    return start


def _claim(assembler: Assembler, rings: Rings, name: str, *, lock: bool) -> None:
    """r8 = a span of esi zero bytes in the ring at rcx; then to the header."""
    retry, again = f"retry {name}", f"again {name}"
    emit(assembler, mov("r11d", RESERVATION_TRIES), mov("rax", at("rcx", layout.RING_HEAD_OFFSET)))
    assembler.label(retry)
    emit(
        assembler,
        lea("rdx", at("rax", 0, "rsi")),
        mov("r8", "rdx"),
        sub("r8", at("rcx", layout.RING_TAIL_OFFSET)),
        cmp("r8", rings.size),
    )
    assembler.jump_if("a", "ring is full")
    assembler.emit(cmpxchg(at("rcx", layout.RING_HEAD_OFFSET), "rdx", lock=lock))
    assembler.jump_if("ne", again)
    emit(assembler, and_("eax", rings.size - 1), lea("r8", at("rcx", layout.RING_CONTROL_SIZE, "rax")))
    assembler.jump("fill header")
    assembler.label(again)
    assembler.emit(dec("r11d"))
    assembler.jump_if("ne", retry)
    assembler.jump("ring is full")
