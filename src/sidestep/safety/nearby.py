"""Another instruction, where the one that was asked for cannot be probed."""

from __future__ import annotations

from collections.abc import Callable

from sidestep.errors import Refusal
from sidestep.safety.context import ModuleContext
from sidestep.safety.region import Placement

_REACH = 64  # bytes, each way


def nearest(context: ModuleContext, address: int, judge: Callable[[int], Placement | Refusal]) -> int | None:
    """The run-time address of the nearest other instruction of the function that can be probed; of two as
    near, the one behind. `judge` gives the verdict about a run-time address."""
    own = address - context.bias
    function = context.function_at(own)
    if function is None:
        return None
    code = context.code_of(function)
    code.decode_to(min(own + _REACH, code.end - 1))
    others = [each.ip for each in code.instructions if each.ip != own and abs(each.ip - own) <= _REACH]
    for other in sorted(others, key=lambda each: (abs(each - own), each < own)):
        if isinstance(judge(other + context.bias), Placement):
            return other + context.bias
    return None
