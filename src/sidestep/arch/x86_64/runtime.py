"""The routines that detour buffers share, written once at the start of each code arena.

They run in the target, on the stack of whatever thread hit a probe, and call nothing of the target. They use
no vector register and no string instruction (so the direction flag does not matter) and little stack, as
said below. They clobber the flags; which registers they keep is said with each.

A thread's counter block is found in the process page's table by a hash of the fs base, which is unique among
the threads of a process. A forked child sees that page as zeros, so its threads claim blocks of their own.
"""

from __future__ import annotations

from typing import Final

from sidestep.arch.x86_64 import reading
from sidestep.arch.x86_64.reading import SYS_GETPID, emit, restore, save
from sidestep.arch.x86_64.shapes import (
    RET,
    SYSCALL,
    add,
    and_,
    at,
    cmp,
    cmpxchg,
    dec,
    inc,
    lea,
    mov,
    or_,
    shl,
    shr,
    sub,
    test,
    xor,
)
from sidestep.arch.x86_64.writer import Assembler
from sidestep.events import layout

_BLOCK_SHIFT: Final = (layout.COUNTER_BLOCK_SIZE // layout.BLOCK_ENTRY_SIZE).bit_length() - 1
_RETURN_AND_POP_8: Final = b"\xc2\x08\x00"  # ret $8
_RDFSBASE_RAX: Final = b"\xf3\x48\x0f\xae\xc0"

RUNTIME_SIZE: Final = 1024
"""Bytes to leave for it at the start of an arena."""

STACK_OF_ROUTINE: Final = {
    "read_word": 112,
    "read_memory": 96,
    "write_word": 96,
    "thread_name": 16,
    "walk_stack": 144,
    "reserve": 64,
}
"""Bytes of stack that a routine which handlers call uses at most, its own callees included."""

STACK_OF_HANDLER: Final = 416
"""The same for a native handler, with the routines that it calls; one that needs more is refused."""

STACK_OF_ROUTINES: Final = STACK_OF_HANDLER + 8
"""Where code that a buffer calls returns to the buffer is within so many bytes above the stack pointer."""


class Runtime:
    """The routines' code and addresses.

    `address` is where the code will be, `process_page` where the process page is in the target (anywhere: one
    page can serve all arenas of a process), `data` where the shared memory is mapped there. `reads_fs_base`:
    programs may read the fs base (FSGSBASE), so that what is at fs:0 can be compared with it.
    """

    def __init__(self, address: int, process_page: int, data: int, *, reads_fs_base: bool = False) -> None:
        self.address, self.process_page, self.data = address, process_page, data
        self._reads_fs_base = reads_fs_base
        assembler = Assembler(address)
        self.process_page_pointer = assembler.here
        assembler.raw(process_page.to_bytes(8, "little"))
        self.thread_table_pointer = assembler.here
        assembler.raw((process_page + layout.THREAD_TABLE_OFFSET).to_bytes(8, "little"))
        self.thread_block = self._thread_block(assembler)
        self.process_block = self._process_block(assembler)
        self.read_memory = reading.read_memory(assembler)
        self.read_word = reading.read_word(assembler)
        self.write_word = reading.write_word(assembler)
        self.thread_name = reading.thread_name(assembler)
        self.walk_stack = reading.walk_stack(assembler)
        self._note_pid(assembler)
        self._find_process_block(assembler)
        self._claim_block(assembler)
        self.code = assembler.finish()
        assert len(self.code) <= RUNTIME_SIZE

    def counters(self, block: int) -> int:
        """The address of a counter block in the target."""
        return self.data + layout.counter_offset(block, 0)

    def _thread_block(self, assembler: Assembler) -> int:
        """The block of a thread whose first slot in the table did not match.

        On the stack: the word at fs:0, above the counter's offset in its block (8 * index). That word is
        replaced by the address of the block, the offset is taken off. All registers are kept. Where there is
        no block for this thread, or fs:0 does not hold its fs base, the hit is counted in the process's
        block, and SCRATCH_BLOCK is returned, for the caller to increment.
        """
        saved = ("rax", "rcx", "rdx", "rsi", "rdi", "r11")
        offset_slot, base_slot = at("rsp", 8 * len(saved) + 8), at("rsp", 8 * len(saved) + 16)
        start = assembler.label("thread_block")
        save(assembler, saved)
        emit(assembler, mov("rdi", self.process_page))
        assembler.call("note_pid")
        assembler.emit(mov("r11", base_slot))
        assembler.emit(cmp("r11", layout.THREAD_RESERVED))
        assembler.jump_if("be", "no block")
        emit(
            assembler,
            mov("ecx", "r11d"),
            shr("ecx", layout.THREAD_HASH_SHIFT),
            and_("ecx", layout.THREAD_HASH_MASK),
            lea("rsi", at("rdi", layout.THREAD_TABLE_OFFSET, "rcx")),
            mov("edx", layout.THREAD_TABLE_PROBES),
        )
        assembler.label("slot")
        assembler.emit(mov("rax", at("rsi")))
        assembler.emit(cmp("rax", "r11"))
        assembler.jump_if("e", "found")
        assembler.emit(test("rax", "rax"))
        assembler.jump_if("e", "free slot")
        assembler.label("next slot")
        assembler.emit(add("rsi", 16))
        assembler.emit(dec("edx"))
        assembler.jump_if("ne", "slot")

        assembler.label("no block")
        assembler.call("find_process_block")
        emit(
            assembler,
            mov("rcx", offset_slot),
            inc(at("rax", 0, "rcx"), lock=True),
            mov("rax", self.counters(layout.SCRATCH_BLOCK)),
        )
        assembler.jump("return block")

        assembler.label("found")
        assembler.emit(mov("rax", at("rsi", 8)))
        assembler.label("return block")
        assembler.emit(mov(base_slot, "rax"))
        restore(assembler, saved)
        assembler.raw(_RETURN_AND_POP_8)

        # The slot is reserved before a block is claimed and gets its key last: a signal handler
        # that counts on this thread in between takes the next slot.
        assembler.label("free slot")
        if self._reads_fs_base:
            assembler.raw(_RDFSBASE_RAX)
            assembler.emit(cmp("rax", "r11"))
            assembler.jump_if("ne", "no block")
        emit(
            assembler,
            mov("rcx", self.data + layout.BLOCKS_EXHAUSTED_OFFSET),
            cmp(at("rcx"), 0, 32),
        )
        assembler.jump_if("ne", "no block")
        assembler.emit(xor("eax", "eax"))
        assembler.emit(mov("ecx", layout.THREAD_RESERVED))
        assembler.emit(cmpxchg(at("rsi"), "rcx", lock=True))
        assembler.jump_if("ne", "slot")
        emit(
            assembler,
            mov("edx", at("rdi", layout.PROCESS_PID_OFFSET)),
            mov("rax", layout.KIND_THREAD << layout.BLOCK_KIND_SHIFT),
            or_("rdx", "rax"),
        )
        assembler.call("claim_block")
        assembler.emit(test("rax", "rax"))
        assembler.jump_if("e", "give slot back")
        assembler.emit(mov(at("rsi", 8), "rax"))
        assembler.emit(mov(at("rsi"), "r11"))
        assembler.jump("return block")
        assembler.label("give slot back")
        assembler.emit(mov(at("rsi"), 0))
        assembler.jump("no block")
        return start

    def _process_block(self, assembler: Assembler) -> int:
        """The value on top of the stack becomes the address of the process's block; keeps all registers."""
        saved = ("rax", "rcx", "rdx", "rdi", "r11")
        start = assembler.label("process_block")
        save(assembler, saved)
        assembler.emit(mov("rdi", self.process_page))
        assembler.call("note_pid")
        assembler.call("find_process_block")
        assembler.emit(mov(at("rsp", 8 * len(saved) + 8), "rax"))
        restore(assembler, saved)
        assembler.raw(RET)
        return start

    def _note_pid(self, assembler: Assembler) -> None:
        """rdi = process page: stores the pid there, once. Clobbers rax, rcx, r11."""
        assembler.label("note_pid")
        assembler.emit(cmp(at("rdi", layout.PROCESS_PID_OFFSET), 0, 32))
        assembler.jump_if("ne", "pid is known")
        assembler.emit(mov("eax", SYS_GETPID))
        assembler.raw(SYSCALL)
        assembler.emit(mov(at("rdi", layout.PROCESS_PID_OFFSET), "eax"))
        assembler.label("pid is known")
        assembler.raw(RET)

    def _find_process_block(self, assembler: Assembler) -> None:
        """rdi = process page; rax = the process's block, or SHARED_BLOCK if none is free. Clobbers rcx, rdx,
        r11.

        Whoever loses the race to enter a block gives the one that it claimed back, unused.
        """
        assembler.label("find_process_block")
        assembler.emit(mov("rax", at("rdi", layout.PROCESS_BLOCK_OFFSET)))
        assembler.emit(test("rax", "rax"))
        assembler.jump_if("ne", "process block known")
        emit(
            assembler,
            mov("edx", at("rdi", layout.PROCESS_PID_OFFSET)),
            mov("rax", layout.KIND_PROCESS << layout.BLOCK_KIND_SHIFT),
            or_("rdx", "rax"),
            xor("r11d", "r11d"),
        )
        assembler.call("claim_block")
        assembler.emit(mov("rcx", "rax"))
        assembler.emit(test("rax", "rax"))
        assembler.jump_if("ne", "enter process block")
        assembler.emit(mov("rcx", self.counters(layout.SHARED_BLOCK)))
        assembler.label("enter process block")
        assembler.emit(xor("eax", "eax"))
        assembler.emit(cmpxchg(at("rdi", layout.PROCESS_BLOCK_OFFSET), "rcx", lock=True))
        assembler.jump_if("ne", "process block lost")
        assembler.emit(mov("rax", "rcx"))
        assembler.label("process block known")
        assembler.raw(RET)
        assembler.label("process block lost")
        emit(
            assembler,
            mov("rdx", self.counters(layout.SHARED_BLOCK)),
            sub("rcx", "rdx"),
        )
        assembler.jump_if("e", "process block known")
        emit(
            assembler,
            shr("rcx", _BLOCK_SHIFT),
            mov("rdx", self.data + layout.block_offset(0)),
            mov(at("rcx", 0, "rdx"), 0),
        )
        assembler.raw(RET)

    def _claim_block(self, assembler: Assembler) -> None:
        """rdx = first word of the entry, r11 = fs base; rax = the claimed block, or 0. Clobbers rcx."""
        assembler.label("claim_block")
        assembler.emit(mov("rcx", self.data + layout.block_offset(layout.FIRST_FREE_BLOCK)))
        assembler.label("entry")
        assembler.emit(mov("rax", at("rcx")))
        assembler.emit(test("rax", "rax"))
        assembler.jump_if("ne", "next entry")
        assembler.emit(cmpxchg(at("rcx"), "rdx", lock=True))
        assembler.jump_if("ne", "next entry")
        emit(
            assembler,
            mov(at("rcx", 8), "r11"),
            mov("rax", self.data + layout.block_offset(0)),
            sub("rcx", "rax"),
            shl("rcx", _BLOCK_SHIFT),
            mov("rax", self.counters(0)),
            add("rax", "rcx"),
        )
        assembler.raw(RET)
        assembler.label("next entry")
        emit(
            assembler,
            add("rcx", layout.BLOCK_ENTRY_SIZE),
            mov("rax", self.data + layout.block_offset(layout.BLOCK_COUNT - 1)),
            cmp("rcx", "rax"),
        )
        assembler.jump_if("be", "entry")
        emit(
            assembler,
            mov("rax", self.data + layout.BLOCKS_EXHAUSTED_OFFSET),
            mov(at("rax"), 1, 32),
            xor("eax", "eax"),
        )
        assembler.raw(RET)
