"""Where a program's signal handlers come and go, if all of them do so at one place of its C library."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from sidestep import errors
from sidestep.address import Range
from sidestep.arch.x86_64.placement import signal_returns
from sidestep.arch.x86_64.signal_code import SYS_RT_SIGACTION
from sidestep.errors import Refusal
from sidestep.events.layout import JUMP_SIZE
from sidestep.safety.context import ModuleContext
from sidestep.safety.leads import leads_of
from sidestep.symbols.modules import Module
from sidestep.target.base import SignalPath

# mov $13,%eax with a system call behind it: at once, or in so many bytes.
_NUMBER = b"\xb8" + SYS_RT_SIGACTION.to_bytes(4, "little")
_SYSCALL = b"\x0f\x05"
_CALL_OF_RT_SIGACTION = re.compile(re.escape(_NUMBER) + b"(?=.{0,48}?" + _SYSCALL + b")", re.DOTALL)
_LOADER = "ld-linux"  # installs handlers for LD_PROFILE only


class Installers(NamedTuple):
    """What one module has, in the file's addresses: where it calls rt_sigaction, it seems, and restorers."""

    calls: Sequence[int]
    restorers: Sequence[Range]


def installers(module: Module) -> Installers:
    """Those of one module; all of its code is searched."""
    calls: list[int] = []
    restorers: list[Range] = []
    if not module.name.startswith((_LOADER, "[")):
        for text in module.elf.text:
            code = module.elf.read(text.start, text.size)
            calls += (text.start + found.start() for found in _CALL_OF_RT_SIGACTION.finditer(code))
            restorers += signal_returns(code, text.start)
    return Installers(calls, restorers)


def find_signal_path(
    found: Iterable[tuple[Module, Installers]], context: Callable[[Module], ModuleContext]
) -> SignalPath | Refusal:
    """The one place, or why there is none."""
    having = [(module, each) for module, each in found if each.calls]
    if len(having) != 1:
        names = ", ".join(module.name for module, _ in having[:4])
        return _refusal(
            f"several modules install handlers: {names}" if having else "nothing installs handlers"
        )
    module, (calls, restorers) = having[0]
    if len(calls) != 1 or len(restorers) != 1:
        return _refusal(f"{module.name} installs handlers at {len(calls)} places")
    installer = Range(calls[0], calls[0] + len(_NUMBER) + len(_SYSCALL))
    restorer = Range(restorers[0].start, restorers[0].end - len(_SYSCALL))
    about = context(module)
    if about.bytes_at(*installer) != _NUMBER + _SYSCALL:
        return _refusal(f"{module.name} installs handlers in a way that is not known")
    # Unwinders shall find the frame by that, when the bytes are not those that they know.
    if module.functions.frames.containing(restorer.start) is None:
        return _refusal(f"the signal return path of {module.name} has no unwind entry")
    function = about.function_at(installer.start)
    code = about.code_of(function) if function is not None else None
    if code is None or not code.decode_to(installer.end) or not code.is_boundary(installer.start):
        return _refusal(f"what installs handlers in {module.name} cannot be decoded")
    refusal = leads_of(about, code).to(installer.start + len(_NUMBER))
    if refusal is not None:
        return refusal
    bias = module.bias
    for start, _ in (restorer, installer):
        if start % 4096 > 4096 - JUMP_SIZE:
            return Refusal(errors.CROSSES_PAGE, f"{start:#x}")
        if about.memory is not None and about.memory(start + bias, 7) != about.bytes_at(start, start + 7):
            return Refusal(errors.FOREIGN_BYTES, f"{start:#x}")
    span = Range(min(each.start for each in module.ranges), max(each.end for each in module.ranges))
    return SignalPath(_moved(restorer, bias), _moved(installer, bias), span)


def _moved(where: Range, bias: int) -> Range:
    return Range(where.start + bias, where.end + bias)


def _refusal(detail: str) -> Refusal:
    return Refusal(errors.MAY_FAULT, detail)
