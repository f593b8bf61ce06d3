"""The instructions around a probepoint, with what a probe there would touch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sidestep.address import Range

if TYPE_CHECKING:
    from sidestep.arch.x86_64.insn import Instruction
    from sidestep.symbols.functions import Function
    from sidestep.symbols.modules import Module

CONTEXT: Final = 3
"""Instructions shown before and behind the region."""

LEGEND: Final = (
    "-> insertion address   | detoured code region (DCR)   [..] jump target prohibition region (JTPR)"
)


@dataclass(frozen=True, slots=True)
class Marks:
    """What to mark, in the file's own addresses: the insertion address, the DCR (None: refused), the JTPR."""

    address: int
    dcr: Range | None
    prohibited: Range


def disassemble(module: Module, function: Function, marks: Marks) -> list[str]:
    """Lines of a listing with addresses as nm and objdump print them, and the marks of LEGEND."""
    from sidestep.arch.x86_64.insn import decode

    code = module.elf.read(function.start, min(function.end - function.start, 1 << 24))
    instructions = decode(code, function.start)
    last = marks.dcr.end if marks.dcr is not None else marks.address + 1
    first = min(marks.dcr.start, marks.address) if marks.dcr is not None else marks.address
    touched = [number for number, each in enumerate(instructions) if each.next_ip > first and each.ip < last]
    if not touched:
        return [f"   {marks.address:#x}  no instruction can be decoded here"]
    shown = instructions[max(touched[0] - CONTEXT, 0) : touched[-1] + CONTEXT + 1]
    rows = [
        (_mark(each, marks), f"{each.ip:#x}", _bytes(each, code[each.ip - function.start :], marks), each)
        for each in shown
    ]
    widths = [max(len(row[column]) for row in rows) for column in (1, 2)]
    return [
        f"{mark} {address:>{widths[0]}}  {content:<{widths[1]}}  {_text(module, each)}".rstrip()
        for mark, address, content, each in rows
    ]


def _mark(instruction: Instruction, marks: Marks) -> str:
    arrow = "->" if instruction.ip <= marks.address < instruction.next_ip else "  "
    inside = marks.dcr is not None and marks.dcr.start <= instruction.ip < marks.dcr.end
    return f"{arrow} {'|' if inside else ' '}"


def _bytes(instruction: Instruction, code: bytes, marks: Marks) -> str:
    """The instruction's bytes; those of the JTPR stand in brackets: ` 48[83 ec]10`."""
    text = ""
    inside = False
    for address, byte in zip(range(instruction.ip, instruction.next_ip), code, strict=False):
        before, inside = inside, address in marks.prohibited
        text += f"{' ' if inside == before else '[' if inside else ']'}{byte:02x}"
    return f"{text}]" if inside else text


def _text(module: Module, instruction: Instruction) -> str:
    """The instruction, with the name of what it branches to."""
    from sidestep.arch.x86_64.insn import direct_branch_target, text

    target = direct_branch_target(instruction)
    if target is None:
        return text(instruction)
    function = module.functions.containing(target)
    if function is None:
        return text(instruction)
    offset = target - function.start
    return f"{text(instruction)}  # {function.name}" + (f"+{offset:#x}" if offset else "")
