"""The x86-64 registers that a fetch argument can name."""

from __future__ import annotations

# The kernel's name in pt_regs, the 64-bit spelling, and the names of its low 32, 16 and 8 bits.
_TABLE = (
    ("ax", "rax", "eax", None, "al"),
    ("bx", "rbx", "ebx", None, "bl"),
    ("cx", "rcx", "ecx", None, "cl"),
    ("dx", "rdx", "edx", None, "dl"),
    ("si", "rsi", "esi", None, "sil"),
    ("di", "rdi", "edi", None, "dil"),
    ("bp", "rbp", "ebp", None, "bpl"),
    ("sp", "rsp", "esp", None, "spl"),
    *((f"r{number}", f"r{number}", f"r{number}d", f"r{number}w", f"r{number}b") for number in range(8, 16)),
    ("ip", "rip", "eip", None, None),
    ("flags", "rflags", "eflags", None, None),
)

# Every accepted spelling -> the name in pt_regs. As in the kernel, %ax is the whole 64-bit register.
REGISTERS: dict[str, str] = {spelling: row[0] for row in _TABLE for spelling in row[:2]}

# The name of a part -> (name in pt_regs, type that selects the part of it).
PARTS: dict[str, tuple[str, str]] = {
    part: (row[0], f"x{bits}")
    for row in _TABLE
    for part, bits in zip(row[2:], (32, 16, 8), strict=True)
    if part is not None
}
PARTS.update({f"{letter}h": (f"{letter}x", "b8@8/16") for letter in "abcd"})
