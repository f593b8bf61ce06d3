"""What an instruction reads and writes of the general registers and the status flags, as sets of bits.

Bit i, i < 16, is register i of GENERAL_REGISTERS; the six status flags follow. The decoder's own tables are
put right here where they promise more than the processor does.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from sidestep.arch.x86_64.insn import (
    GENERAL_REGISTERS,
    REGISTER_NAMES,
    Instruction,
    InstructionInfoFactory,
    OpAccess,
    OpKind,
    RflagsBits,
    general_register,
    is_syscall,
    mnemonics,
)

REGISTER_BITS = {name: 1 << number for number, name in enumerate(GENERAL_REGISTERS)}
ALL_REGISTERS = 0xFFFF
_FLAG_SHIFT = 16
_STATUS_FLAGS = 0x3F  # the decoder's OF SF ZF AF CF PF
ALL_FLAGS = _STATUS_FLAGS << _FLAG_SHIFT
EVERYTHING = ALL_REGISTERS | ALL_FLAGS


class Effects(NamedTuple):
    """Sets of bits, see above.

    `reads`: the old value may matter. `writes`: the value may change. `replaces`: the old value is gone for
    certain (unless it was read): all 64 bits of a register are written whatever the operands hold, a flag is
    set. Flags that the manuals call undefined may in truth stay as they were, so they are not replaced; AF
    is, since only BCD arithmetic had a use for it.
    """

    reads: int
    writes: int
    replaces: int


_INFO = InstructionInfoFactory()
_BITS = {
    number: REGISTER_BITS[general]
    for number in REGISTER_NAMES
    if (general := general_register(number)) is not None
}
# A write to a 32-bit register is reported as one to the whole, since it clears the upper half.
_WHOLE = frozenset(number for number, name in REGISTER_NAMES.items() if name in REGISTER_BITS)
_READS = frozenset((OpAccess.READ, OpAccess.COND_READ, OpAccess.READ_WRITE, OpAccess.READ_COND_WRITE))
_WRITES = frozenset((OpAccess.WRITE, OpAccess.COND_WRITE, OpAccess.READ_WRITE, OpAccess.READ_COND_WRITE))

# The flags go to r11, but nobody looks there: they count as handed on, not as read.
_SYSCALL = Effects(
    reads=ALL_REGISTERS & ~(REGISTER_BITS["rcx"] | REGISTER_BITS["r11"]),
    writes=REGISTER_BITS["rax"] | REGISTER_BITS["rcx"] | REGISTER_BITS["r11"],
    replaces=REGISTER_BITS["rcx"] | REGISTER_BITS["r11"],
)
# A count of zero leaves the flags as they were.
_SHIFTS = mnemonics("SHL SAL SHR SAR ROL ROR RCL RCR SHLD SHRD")
# No operation unless shadow stacks are on.
_READ_SHADOW_STACK = mnemonics("RDSSPD RDSSPQ")
# Code elsewhere sees all registers.
_OPAQUE = mnemonics("ENCLU GETSEC VMFUNC VMCALL VMMCALL SYSENTER INT INT1 INT3 XBEGIN XABORT UIRET SENDUIPI")


@lru_cache(maxsize=4096)  # instructions are equal if all but their addresses are
def effects(instruction: Instruction) -> Effects:
    """What the processor does; that a call or a return hands registers on is the caller's knowledge."""
    if is_syscall(instruction):
        return _SYSCALL
    mnemonic = instruction.mnemonic
    if mnemonic in _OPAQUE:
        return Effects(EVERYTHING, EVERYTHING, 0)
    reads = writes = replaces = 0
    for used in _INFO.info(instruction).used_registers():
        number = used.register
        bit = _BITS.get(number)
        if bit is None:
            continue
        access = used.access
        if access in _READS:
            reads |= bit
        if access in _WRITES:
            writes |= bit
            if access == OpAccess.WRITE and number in _WHOLE:
                replaces |= bit
    reads |= (instruction.rflags_read & _STATUS_FLAGS) << _FLAG_SHIFT
    flags = instruction.rflags_modified & _STATUS_FLAGS
    if flags:
        writes |= flags << _FLAG_SHIFT
        if not _may_leave_flags(instruction):
            undefined = instruction.rflags_undefined & ~RflagsBits.AF
            replaces |= (flags & ~undefined) << _FLAG_SHIFT
    if mnemonic in _READ_SHADOW_STACK:
        replaces = 0
    return Effects(reads, writes, replaces)


def _may_leave_flags(instruction: Instruction) -> bool:
    """Shifts by cl, and repeated comparisons, which may do nothing at all."""
    if instruction.mnemonic in _SHIFTS:
        return instruction.op_kind(instruction.op_count - 1) == OpKind.REGISTER
    return instruction.has_rep_prefix or instruction.has_repne_prefix
