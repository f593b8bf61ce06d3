"""Decoding, and the facts about one instruction that everything else is decided by.

This is the only file that imports iced-x86. An `Instruction` is that library's value (`.ip`, `.len`,
`.next_ip`, `.code`, `.mnemonic` and so on); treat it as read-only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from itertools import takewhile
from types import ModuleType

from iced_x86 import (
    Code,
    Decoder,
    DecoderOptions,
    Encoder,
    EncodingKind,
    FlowControl,
    Formatter,
    FormatterSyntax,
    Instruction,
    InstructionInfoFactory,
    MemoryOperand,
    MemorySizeExt,
    Mnemonic,
    OpAccess,
    OpKind,
    Register,
    Register_,
    RegisterExt,
    RflagsBits,
    UsedMemory,
)

__all__ = [
    "GENERAL_REGISTERS", "HOST_IS_AMD", "REGISTER_NAMES", "Code", "EncodingKind", "FlowControl",
    "Instruction", "InstructionInfoFactory", "MemoryOperand", "Mnemonic", "OpAccess", "OpKind", "Register",
    "RflagsBits", "boundaries", "can_fault", "condition_number", "containing", "decode",
    "direct_branch_target", "displacement_offset", "encode", "falls_through", "general_register",
    "is_16_bit_branch", "is_call", "is_conditional", "is_counted_branch", "is_far", "is_indirect_jump",
    "is_return", "is_syscall", "memory_base", "mnemonics", "name", "register", "register_bits", "rip_target",
    "text",
]  # fmt: skip

# In the order of their numbers in instruction encodings.
GENERAL_REGISTERS = ("rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi",
                     "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15")  # fmt: skip

_REGISTER_BY_NAME: dict[str, Register_] = {
    key.lower(): getattr(Register, key) for key, value in vars(Register).items() if isinstance(value, int)
}  # fmt: skip
# By the decoder's numbers.
REGISTER_NAMES: dict[int, str] = {number: key for key, number in _REGISTER_BY_NAME.items()}
_GENERAL_BY_REGISTER: dict[int, str] = {
    number: REGISTER_NAMES[RegisterExt.full_register(number)]
    for number in _REGISTER_BY_NAME.values() if RegisterExt.is_gpr(number)
}  # fmt: skip
_MNEMONIC_NAMES: dict[int, str] = {
    value: key.lower() for key, value in vars(Mnemonic).items() if isinstance(value, int)
}  # fmt: skip


def _numbers(table: ModuleType, names: str) -> frozenset[int]:
    """The decoder's numbers of the `names` (separated by white space) of one of its tables."""
    return frozenset(getattr(table, name) for name in names.split())


def mnemonics(names: str) -> frozenset[int]:
    """The decoder's numbers of mnemonics (upper case, separated by white space)."""
    return _numbers(Mnemonic, names)


_FORMATTER = Formatter(FormatterSyntax.GAS)
_FORMATTER.uppercase_hex = False
_FORMATTER.branch_leading_zeros = False
_ENCODER = Encoder(64)
_INFO = InstructionInfoFactory()


def _host_is_amd() -> bool:
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("vendor_id"):
                    return "AuthenticAMD" in line or "HygonGenuine" in line
    except OSError:
        pass
    return False


# AMD processors honour a 66 prefix on near branches (16-bit targets), Intel's ignore it.
HOST_IS_AMD = _host_is_amd()


def decode(code: bytes, address: int, *, amd: bool = HOST_IS_AMD) -> list[Instruction]:
    """The instructions of `code`, which starts at `address`; stops before bytes that are no instruction.

    All of `code` was decoded if the last one's `next_ip` is `address + len(code)`. `amd` chooses how a 66
    prefix on a branch is read.
    """
    options = DecoderOptions.AMD if amd else DecoderOptions.NONE
    instructions = list(Decoder(64, code, options, ip=address))
    return instructions if all(instructions) else list(takewhile(bool, instructions))


def boundaries(instructions: Sequence[Instruction]) -> list[int]:
    """The address of each instruction, and the address behind the last one."""
    starts = [instruction.ip for instruction in instructions]
    return [*starts, instructions[-1].next_ip] if instructions else starts


def containing(instructions: Sequence[Instruction], address: int) -> Instruction | None:
    """The one of `instructions` (in the order of their addresses) that has a byte at `address`."""
    index = bisect_right(instructions, address, key=lambda instruction: instruction.ip) - 1
    if index < 0 or address >= instructions[index].next_ip:
        return None
    return instructions[index]


def displacement_offset() -> int:
    """Where the displacement stands in the bytes that `encode` returned last."""
    return _ENCODER.get_constant_offsets().displacement_offset


def encode(instruction: Instruction, address: int) -> bytes:
    """The bytes of `instruction` for `address`: its RIP-relative operand or branch target stays what it is.

    Redundant prefixes are dropped, so the length can differ from the original's. ValueError: out of reach.
    """
    try:
        _ENCODER.encode(instruction, address)
    finally:
        code = _ENCODER.take_buffer()  # also after an error, which leaves a part of the bytes behind
    return code


def text(instruction: Instruction) -> str:
    """The instruction in AT&T syntax, for messages."""
    return _FORMATTER.format(instruction)


def name(instruction: Instruction) -> str:
    """The mnemonic in lower case without a size suffix."""
    return _MNEMONIC_NAMES[instruction.mnemonic]


@cache
def register(register_name: str) -> Register_:
    """The decoder's number of a register. KeyError: no such register."""
    return _REGISTER_BY_NAME[register_name]


@cache
def register_bits(register_name: str) -> int:
    """The width of a register in bits. KeyError: no such register."""
    return RegisterExt.size(register(register_name)) * 8


def general_register(number: int) -> str | None:
    """The 64-bit name of the general register that `number` (any width) is part of; None for others."""
    return _GENERAL_BY_REGISTER.get(number)


def memory_base(instruction: Instruction) -> str:
    """The name of the memory operand's base register, "none" without one."""
    return REGISTER_NAMES[instruction.memory_base]


# Where control goes

_NEAR_BRANCHES = (OpKind.NEAR_BRANCH64, OpKind.NEAR_BRANCH32, OpKind.NEAR_BRANCH16)
_16_BIT_CODES = _numbers(
    Code,
    """
    CALL_RM16 JMP_RM16 RETNW RETNW_IMM16 CALL_REL16 JMP_REL16 JMP_REL8_16
""",
)


def direct_branch_target(instruction: Instruction) -> int | None:
    """Where a jump, conditional jump, loop, call or xbegin with its target in its encoding leads."""
    return instruction.near_branch_target if instruction.op0_kind in _NEAR_BRANCHES else None


def is_16_bit_branch(instruction: Instruction) -> bool:
    """A branch, call or return that a 66 prefix cuts to 16 bits (on AMD processors)."""
    return instruction.op0_kind == OpKind.NEAR_BRANCH16 or instruction.code in _16_BIT_CODES


def is_call(instruction: Instruction) -> bool:
    """A call of any form; not syscall, sysenter, vmcall and the like, which the decoder counts as calls."""
    flow = instruction.flow_control
    if flow == FlowControl.CALL:
        return instruction.op0_kind in _NEAR_BRANCHES
    return flow == FlowControl.INDIRECT_CALL


def is_indirect_jump(instruction: Instruction) -> bool:
    """A jump through a register or memory, near or far."""
    return instruction.flow_control == FlowControl.INDIRECT_BRANCH


def is_return(instruction: Instruction) -> bool:
    """ret, far ret, iret, uiret, sysret and the like."""
    return instruction.flow_control == FlowControl.RETURN


def is_conditional(instruction: Instruction) -> bool:
    """A branch that may fall through: jcc, loop, jrcxz."""
    return instruction.flow_control == FlowControl.CONDITIONAL_BRANCH


def is_counted_branch(instruction: Instruction) -> bool:
    """loop, loope, loopne, jrcxz or jecxz: conditional branches that only reach 128 bytes."""
    return instruction.is_loop or instruction.is_loopcc or instruction.is_jcx_short


def is_syscall(instruction: Instruction) -> bool:
    return instruction.code == Code.SYSCALL


def is_far(instruction: Instruction) -> bool:
    """A jump, call or return that loads the code segment."""
    return instruction.code in _FAR_CODES


_FAR_CODES = frozenset(
    value for key, value in vars(Code).items()
    if isinstance(value, int) and key.startswith(("JMP_M16", "CALL_M16", "RETFW", "RETFD", "RETFQ", "IRET"))
)  # fmt: skip


def falls_through(instruction: Instruction) -> bool:
    """Control may go on at `next_ip` (a call is taken to return; int3 and ud2 are taken not to go on)."""
    return instruction.flow_control not in _NO_FALL_THROUGH


_NO_FALL_THROUGH = frozenset({
    FlowControl.UNCONDITIONAL_BRANCH, FlowControl.INDIRECT_BRANCH, FlowControl.RETURN, FlowControl.INTERRUPT,
    FlowControl.EXCEPTION,
})  # fmt: skip


def condition_number(instruction: Instruction) -> int:
    """The four bits that say the condition of a jcc in its encoding (0 overflow .. 15 greater)."""
    return int(instruction.condition_code) - 1


def rip_target(instruction: Instruction) -> int | None:
    """The address of the RIP-relative memory operand (EIP-relative: its 32 bits); None if there is none."""
    return instruction.ip_rel_memory_address if instruction.is_ip_rel_memory_operand else None


# Faults

# These raise #DE, #GP, #UD or a trap by what their operands hold, or always.
_FAULTING = _numbers(
    Mnemonic,
    """
    DIV IDIV UD0 UD1 UD2 INT INT1 INT3 INTO LDMXCSR VLDMXCSR FXRSTOR FXRSTOR64 FXSAVE FXSAVE64 XRSTOR
    XRSTOR64 XSAVE XSAVE64 XSAVEC XSAVEC64 XSAVEOPT XSAVEOPT64 XGETBV RDPMC WRFSBASE WRGSBASE RDFSBASE
    RDGSBASE WRPKRU RDPKRU LFS LGS LSS CMPXCHG16B SYSENTER INCSSPD INCSSPQ WRSSD WRSSQ RSTORSSP
    SAVEPREVSSP ENCLU VMCALL VMMCALL UIRET SENDUIPI
""",
)
_SEGMENT_LOADS = frozenset(
    value for key, value in vars(Code).items()
    if isinstance(value, int) and key.startswith(("MOV_SREG_", "POPW_FS", "POPW_GS", "POPQ_FS", "POPQ_GS"))
)  # fmt: skip
# Legacy SSE faults on a misaligned operand of 16 bytes, except in these; VEX and EVEX only in `_ALIGNED`.
_UNALIGNED_SSE = _numbers(
    Mnemonic,
    """
    MOVUPS MOVUPD MOVDQU LDDQU MASKMOVDQU PCMPESTRI PCMPESTRM PCMPISTRI PCMPISTRM PCMPESTRI64
    PCMPESTRM64
""",
)
_ALIGNED = _numbers(
    Mnemonic,
    """
    VMOVAPS VMOVAPD VMOVDQA VMOVDQA32 VMOVDQA64 VMOVNTPS VMOVNTPD VMOVNTDQ VMOVNTDQA
""",
)
# Displacements from the stack pointer down to the red zone's end; lower ones probe for the guard page.
_LOWEST_STACK_DISPLACEMENT = -128 - 8


def can_fault(instruction: Instruction) -> bool:
    """The instruction may raise a synchronous fault in a correct program (whose handler would see its ip).

    Counted: memory accesses, divisions, traps, privileged instructions, segment loads, operands that must be
    aligned, state restores. Not counted, since only a broken program or a full stack faults there: the
    implicit stack accesses of push, pop, call, ret, enter and leave; accesses relative to the stack pointer
    (down to the red zone's end); RIP-relative ones; thread-local ones at a constant offset from fs or gs. Not
    counted either: floating point exceptions (masked unless a program enables them), instructions that the
    processor lacks.
    """
    if instruction.mnemonic in _FAULTING or instruction.is_privileged or instruction.code in _SEGMENT_LOADS:
        return True
    if is_far(instruction):
        return True
    if instruction.mnemonic == Mnemonic.LEAVE:
        return False
    accesses = _INFO.info(instruction).used_memory()
    if not accesses:
        return False
    # The decoder reports a RIP-relative operand as an absolute address without a base.
    rip_relative = instruction.is_ip_rel_memory_operand
    if any(_access_can_fault(access, rip_relative) for access in accesses):
        return True
    return _misalignment_faults(instruction)


def _access_can_fault(access: UsedMemory, rip_relative: bool) -> bool:
    if int(access.index) != Register.NONE:
        return True
    base = int(access.base)
    if int(access.segment) in (Register.FS, Register.GS):
        return base != Register.NONE
    if base == Register.RSP:
        displacement = access.displacement
        signed = displacement - (1 << 64) if displacement >> 63 else displacement
        return signed < _LOWEST_STACK_DISPLACEMENT
    return base != Register.NONE or not rip_relative


def _misalignment_faults(instruction: Instruction) -> bool:
    encoding = instruction.encoding
    if encoding != EncodingKind.LEGACY:
        if instruction.mnemonic not in _ALIGNED:
            return False
    elif instruction.mnemonic in _UNALIGNED_SSE or not _uses_vector_register(instruction):
        return False
    size = MemorySizeExt.size(instruction.memory_size)
    if size < 16:
        return False
    target = rip_target(instruction)
    return target is None or target % size != 0


def _uses_vector_register(instruction: Instruction) -> bool:
    return any(
        instruction.op_kind(operand) == OpKind.REGISTER
        and RegisterExt.is_vector_register(instruction.op_register(operand))
        for operand in range(instruction.op_count)
    )
