"""Is an address the start of an instruction?"""

from __future__ import annotations

from typing import NamedTuple

from sidestep.arch.x86_64.code import FunctionCode
from sidestep.arch.x86_64.insn import text
from sidestep.arch.x86_64.placement import undecodable_bytes
from sidestep.errors import NOT_A_BOUNDARY, NOT_DECODABLE, NOT_IN_TEXT, Refusal
from sidestep.safety.context import ModuleContext
from sidestep.safety.leads import leads_of


class Boundary(NamedTuple):
    """An instruction of a function, by its number."""

    code: FunctionCode
    number: int


def find_boundary(context: ModuleContext, address: int) -> Boundary | Refusal:
    """The instruction that starts at `address` (of the file). Instructions are counted off from the
    function's start, in the file's bytes: what probes or debuggers wrote into the memory does not matter."""
    if not any(address in each for each in context.text):
        return Refusal(NOT_IN_TEXT, f"{address:#x} in {context.name}" if context.name else f"{address:#x}")
    function = context.function_at(address)
    if function is None:
        detail = f"no known function contains {address:#x}, so its instructions cannot be told apart"
        return Refusal(NOT_A_BOUNDARY, detail)
    code = context.code_of(function)
    index = code.index_containing(address)
    if index is None:
        where = f"{undecodable_bytes(code)} at {code.reach:#x} in {function.name}"
        return Refusal(NOT_DECODABLE, where)
    instruction = code.instructions[index]
    if instruction.ip != address:
        bounds = f"{instruction.ip:#x}-{instruction.next_ip:#x}"
        start = f"{function.name}+{instruction.ip - function.start:#x}"
        return Refusal(NOT_A_BOUNDARY, f"{address:#x} is inside `{text(instruction)}` at {bounds} ({start})")
    if address != code.start:
        refusal = leads_of(context, code).doubt(address)
        if refusal is not None:
            return refusal
    return Boundary(code, index)
