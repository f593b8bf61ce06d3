"""The runtime's routines that look at the target: its memory, its stack, the thread's name.

Memory is read by a system call of the process on itself: memory that is not there is an answer, not a signal.
Each function emits one routine and returns its address. The routines clobber the flags.
"""

from __future__ import annotations

from typing import Final

from sidestep.arch.x86_64.shapes import (
    RET,
    SYSCALL,
    Piece,
    add,
    at,
    cmp,
    dec,
    lea,
    mov,
    or_,
    pop,
    push,
    shr,
    sub,
    test,
    xor,
)
from sidestep.arch.x86_64.writer import Assembler
from sidestep.events import layout

SYS_GETPID: Final = 39
SYS_PRCTL: Final = 157
SYS_PROCESS_VM_READV: Final = 310
SYS_PROCESS_VM_WRITEV: Final = 311
PR_GET_NAME: Final = 16


def read_memory(assembler: Assembler) -> int:
    """rax = address, rcx = where to, rdx = bytes (1 .. 4096): rax = bytes that could be read, from the
    first on.

    A system call of the process on itself: memory that is not there is an answer, not a signal. The
    remote side is split at the page boundary, since a transfer is only promised to be cut between its
    parts. Clobbers rcx and r11, keeps all others.
    """
    saved = ("rdx", "rsi", "rdi", "r8", "r9", "r10")
    start = assembler.label("read_memory")
    save(assembler, saved)
    emit(
        assembler,
        lea("rsp", at("rsp", -48)),  # the local part, and two remote ones: address, length
        mov(at("rsp"), "rcx"),
        mov(at("rsp", 8), "rdx"),
        mov(at("rsp", 16), "rax"),
        mov(at("rsp", 24), "rdx"),
        mov("ecx", "eax"),
        or_("rcx", -layout.PAGE_SIZE),  # minus the bytes that are left of the page
        sub("rax", "rcx"),  # the next page
        mov("r8d", 1),
        add("rcx", "rdx"),  # bytes in the next page
    )
    assembler.jump_if("le", "in one page")
    emit(
        assembler,
        mov(at("rsp", 32), "rax"),
        mov(at("rsp", 40), "rcx"),
        sub(at("rsp", 24), "rcx"),
        mov("r8d", 2),
    )
    assembler.label("in one page")
    assembler.emit(mov("eax", SYS_GETPID))  # not the noted one: right in a vfork child, too
    assembler.raw(SYSCALL)
    emit(
        assembler,
        mov("edi", "eax"),
        mov("rsi", "rsp"),
        mov("edx", 1),
        lea("r10", at("rsp", 16)),
        xor("r9d", "r9d"),
        mov("eax", SYS_PROCESS_VM_READV),
    )
    assembler.raw(SYSCALL)
    assembler.emit(test("rax", "rax"))
    assembler.jump_if("ns", "read something")
    assembler.emit(xor("eax", "eax"))
    assembler.label("read something")
    assembler.emit(lea("rsp", at("rsp", 48)))
    restore(assembler, saved)
    assembler.raw(RET)
    return start


def read_word(assembler: Assembler) -> int:
    """rax = address, rdx = bytes (1 .. 8): rax = the value, upper bytes zero; ZF set if all could be
    read.

    Clobbers rcx and r11, keeps all others.
    """
    start = assembler.label("read_word")
    assembler.emit(push(0))
    assembler.emit(mov("rcx", "rsp"))
    assembler.call("read_memory")
    assembler.emit(pop("rcx"))
    assembler.emit(cmp("rax", "rdx"))
    assembler.emit(mov("rax", "rcx"))
    assembler.raw(RET)
    return start


def write_word(assembler: Assembler) -> int:
    """rax = address, rcx = value, rdx = bytes (1 .. 8): rax = bytes that could be written, from
    the first on: a value that crosses into a page that cannot be written is written in part.

    A system call of the process on itself: what cannot be written is an answer, not a signal. Clobbers rcx
    and r11, keeps all others.
    """
    saved = ("rdx", "rsi", "rdi", "r8", "r9", "r10")
    start = assembler.label("write_word")
    save(assembler, saved)
    emit(
        assembler,
        lea("rsp", at("rsp", -40)),  # the value, the local part, the remote part
        mov(at("rsp"), "rcx"),
        mov(at("rsp", 8), "rsp"),
        mov(at("rsp", 16), "rdx"),
        mov(at("rsp", 24), "rax"),
        mov(at("rsp", 32), "rdx"),
        mov("eax", SYS_GETPID),
    )
    assembler.raw(SYSCALL)
    emit(
        assembler,
        mov("edi", "eax"),
        lea("rsi", at("rsp", 8)),
        mov("edx", 1),
        lea("r10", at("rsp", 24)),
        mov("r8d", 1),
        xor("r9d", "r9d"),
        mov("eax", SYS_PROCESS_VM_WRITEV),
    )
    assembler.raw(SYSCALL)
    assembler.emit(test("rax", "rax"))
    assembler.jump_if("ns", "wrote something")
    assembler.emit(xor("eax", "eax"))
    assembler.label("wrote something")
    assembler.emit(lea("rsp", at("rsp", 40)))
    restore(assembler, saved)
    assembler.raw(RET)
    return start


def thread_name(assembler: Assembler) -> int:
    """rcx = where the 16 bytes of the thread's name go. Clobbers rax, rcx and r11, keeps all others."""
    saved = ("rsi", "rdi")
    start = assembler.label("thread_name")
    save(assembler, saved)
    emit(assembler, mov("rsi", "rcx"), mov("edi", PR_GET_NAME), mov("eax", SYS_PRCTL))
    assembler.raw(SYSCALL)
    restore(assembler, saved)
    assembler.raw(RET)
    return start


def walk_stack(assembler: Assembler) -> int:
    """rax = frame pointer, rcx = where to, edx = how many at most: stores return addresses.

    Ends at a frame pointer that is misaligned, below the stack pointer, not above the one before, or
    whose memory cannot be read, and at a return address of 0. Frames in the page of the stack pointer
    are read directly: that page is there. Clobbers rax, rcx, rdx and r11, keeps all others.
    """
    saved = ("rsi", "rdi", "r8")
    start = assembler.label("walk_stack")
    save(assembler, saved)
    emit(
        assembler,
        lea("rsp", at("rsp", -16)),
        mov("rsi", "rax"),
        mov("rdi", "rcx"),
        mov("r8d", "edx"),
        mov("edx", 16),
    )
    assembler.label("frame")
    assembler.emit(test("r8d", "r8d"))
    assembler.jump_if("e", "end of stack")
    assembler.emit(test("esi", 7))
    assembler.jump_if("ne", "end of stack")
    assembler.emit(cmp("rsi", "rsp"))
    assembler.jump_if("b", "end of stack")
    emit(assembler, lea("rax", at("rsi", 15)), xor("rax", "rsp"), shr("rax", 12))
    assembler.jump_if("ne", "far frame")
    assembler.emit(mov("rcx", at("rsi")))
    assembler.emit(mov("rax", at("rsi", 8)))
    assembler.label("frame is read")
    assembler.emit(test("rax", "rax"))
    assembler.jump_if("e", "end of stack")
    emit(assembler, mov(at("rdi"), "rax"), add("rdi", 8), dec("r8d"), cmp("rcx", "rsi"), mov("rsi", "rcx"))
    assembler.jump_if("a", "frame")
    assembler.label("end of stack")
    assembler.emit(lea("rsp", at("rsp", 16)))
    restore(assembler, saved)
    assembler.raw(RET)
    assembler.label("far frame")
    assembler.emit(mov("rax", "rsi"))
    assembler.emit(mov("rcx", "rsp"))
    assembler.call("read_memory")
    assembler.emit(cmp("rax", "rdx"))
    assembler.jump_if("ne", "end of stack")
    assembler.emit(mov("rcx", at("rsp")))
    assembler.emit(mov("rax", at("rsp", 8)))
    assembler.jump("frame is read")
    return start


def emit(assembler: Assembler, *pieces: Piece) -> None:
    for piece in pieces:
        assembler.emit(piece)


def save(assembler: Assembler, registers: tuple[str, ...]) -> None:
    for register in registers:
        assembler.emit(push(register))


def restore(assembler: Assembler, registers: tuple[str, ...]) -> None:
    for register in reversed(registers):
        assembler.emit(pop(register))
