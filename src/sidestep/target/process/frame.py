"""The signal frame that lets an interrupted thread restore itself (DESIGN: system calls inside the target).

A thread whose stack pointer is at such a frame and which executes `ret` enters the restorer, and
rt_sigreturn(2) puts back every register, the extended state and the signal mask. So a thread that was
borrowed for a system call goes on correctly even when the controller dies in the middle.

Layouts: struct rt_sigframe, struct ucontext and struct sigcontext of <asm/sigframe.h>, <asm/sigcontext.h>.
"""

from __future__ import annotations

import struct

from sidestep.target.process.ptrace import Registers

FP_XSTATE_MAGIC1 = 0x46505853
FP_XSTATE_MAGIC2 = 0x46505845
UC_FP_XSTATE, UC_SIGCONTEXT_SS, UC_STRICT_RESTORE_SS = 1, 2, 4
KEEP_ALTERNATE_STACK = 0x7FFF_FFFF  # no valid ss_flags: rt_sigreturn leaves the alternate stack as it is

UCONTEXT_OFFSET = 8
SIGNAL_MASK_OFFSET = UCONTEXT_OFFSET + 40 + 256
FRAME_SIZE = SIGNAL_MASK_OFFSET + 8 + 128
TILE_FEATURES = 3 << 17  # AMX: not part of a thread's signal frame before it asked for it
INTEL_SIZE_WITHOUT_TILES = 2696  # CPUID.0xD standard format: PKRU, the last feature before AMX, ends here


def extended_state_for_frame(raw: bytes) -> bytes:
    """The XSAVE area of PTRACE_GETREGSET made into what rt_sigreturn accepts (fpx_sw_bytes, second magic)."""
    features = int.from_bytes(raw[464:472], "little")
    in_use = int.from_bytes(raw[512:520], "little")
    size = len(raw)
    if features & TILE_FEATURES and not in_use & TILE_FEATURES:
        size = min(size, INTEL_SIZE_WITHOUT_TILES)
        features &= ~TILE_FEATURES
    area = bytearray(raw[:size])
    area[464:512] = struct.pack("<IIQI28x", FP_XSTATE_MAGIC1, size + 4, features, size)
    return bytes(area) + struct.pack("<I", FP_XSTATE_MAGIC2)


def resumption(registers: Registers, call: int) -> Registers:
    """The registers with which a thread goes on by itself: a pending restart of system call `call` made
    explicit.

    Outside the kernel's own signal path nothing would step back over the `syscall` instruction. A call with a
    restart block (a sleep, poll, or a futex with a limit) is made anew, too: rt_sigreturn gives the block up
    (restore_sigcontext), so that restart_syscall(2) would return EINTR. Without a limit, or with an absolute
    one, that is exact; otherwise the wait begins again and lasts longer, but the program is told nothing.
    """
    resumed = registers.copy()
    if registers.will_restart:
        resumed.rip -= 2
        resumed.rax = call
    return resumed


def build(frame_address: int, state_address: int, restorer: int, registers: Registers, mask: int) -> bytes:
    """The frame's bytes: first the restorer's address, at which `ret` arrives; then the user context.

    `state_address` (64-byte aligned) is where `extended_state_for_frame` lies.
    """
    r = registers
    context = struct.pack(
        "<QQQiiQ",
        UC_FP_XSTATE | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS,
        0,  # uc_link
        0,  # ss_sp
        KEEP_ALTERNATE_STACK,
        0,
        0,  # ss_size
    )
    context += struct.pack(
        "<18Q4H5Q8Q",
        r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rdi, r.rsi, r.rbp, r.rbx, r.rdx, r.rax, r.rcx,
        r.rsp, r.rip, r.eflags, r.cs, 0, 0, r.ss, 0, 0, mask, 0, state_address, *[0] * 8,
    )  # fmt: skip
    context += struct.pack("<Q", mask)
    assert len(context) == SIGNAL_MASK_OFFSET + 8 - UCONTEXT_OFFSET
    return struct.pack("<Q", restorer) + context + bytes(FRAME_SIZE - SIGNAL_MASK_OFFSET - 8)
