"""Code that is never probed, and instructions that never move.

* Sidestep's own areas in the target, the vsyscall page, code that is no private mapping of a file (the
  vdso, shared mappings);
* the signal return path: the kernel and unwinders know it by its bytes, and Sidestep's own system calls end
  in it;
* restartable sequences: the kernel aborts them when a thread leaves their range, and a copy is outside of
  it;
* cancellable system calls of C libraries: the handler of pthread_cancel compares the interrupted instruction
  pointer with their first and last address, and would wait for ever for a thread that blocks in a copy;
* the system calls clone, clone3, vfork and rt_sigreturn: a child starts behind the instruction, or control
  never comes back to it.
"""

from __future__ import annotations

from typing import NamedTuple

from sidestep.address import Range
from sidestep.arch.x86_64.code import FunctionCode
from sidestep.arch.x86_64.insn import is_syscall
from sidestep.arch.x86_64.placement import Cover, describe, leaving_system_call
from sidestep.errors import BLACKLISTED, CANCELLATION, SHARED_TEXT, TEXT_COPIED, Refusal
from sidestep.safety.context import ModuleContext

_CANCELLABLE = (
    "__syscall_cp_asm",
    "__syscall_cancel_arch",
)  # musl's and glibc's; usually known by their code
VSYSCALL_PAGE = Range(0xFFFFFFFFFF600000, 0xFFFFFFFFFF601000)


class Forbidden(NamedTuple):
    """Run-time addresses that are not probed, and what they are."""

    where: Range
    what: str


def blacklist(context: ModuleContext) -> list[Forbidden]:
    """Everything in or around this module that is known not to be probed, for people to read."""
    return [Forbidden(VSYSCALL_PAGE, "the vsyscall page"),
            *(Forbidden(*each) for each in context.batch.forbidden),
            *(Forbidden(Range(where.start + context.bias, where.end + context.bias), what)
              for where, what, _ in context.special_code)]  # fmt: skip


def refused_module(context: ModuleContext) -> Refusal | None:
    """Nothing in this module can be probed."""
    if context.is_shared:
        return Refusal(SHARED_TEXT, context.name)
    if context.is_copied:
        return Refusal(TEXT_COPIED, context.name)
    if not context.is_file:
        return Refusal(BLACKLISTED, f"the code of {context.name} is no private mapping of a file")
    return None


def refused_range(context: ModuleContext, dcr: Range) -> Refusal | None:
    """A range of the file's addresses touches code that is not probed."""
    for where, what, reason in context.special_code:
        if where.overlaps(dcr):
            return Refusal(reason, f"{what} at {where}")
    function = context.function_at(dcr.start)
    if function is not None and function.name in _CANCELLABLE:
        return Refusal(CANCELLATION, f"{function.name} at {dcr}")
    run_time = Range(dcr.start + context.bias, dcr.end + context.bias)
    for where, what in ((VSYSCALL_PAGE, "the vsyscall page"), *context.batch.forbidden):
        if where.overlaps(run_time):
            return Refusal(BLACKLISTED, f"{what} at {where}")
    return None


def refused_system_call(code: FunctionCode, cover: Cover) -> Refusal | None:
    """A system call among the instructions of the DCR must stay where it is."""
    for instruction in cover.instructions:
        name = leaving_system_call(code, instruction) if is_syscall(instruction) else None
        if name is not None:
            return Refusal(BLACKLISTED, f"{describe(instruction)} is the system call {name}")
    return None
