"""The code of the signal layer: what the kernel calls in place of the program's handlers for faults, and what
stands at the two places of the C library through which handlers come and go.

A *front* is the entry that the kernel has instead of a handler. There are `FRONTS` of them for handlers with
SA_SIGINFO and as many for those without, each with a slot that says which handler it stands for. A slot is
written once, so that the kernel's own state says which handler is installed: nothing has to be kept in step.

A *table of copies* has the buffers' instructions and the interior of their DCRs (see `Entry`). Its slots are
written while the target is stopped; a key never moves to another slot while it is there.

Registers that may be changed: at a front all that a function may change but its arguments; at the restorer
all but rsp, since rt_sigreturn(2) restores them; at the installer's system call rax, rcx and r11, which the
call changes, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from sidestep.arch.x86_64.insn import Instruction, is_syscall
from sidestep.arch.x86_64.reading import emit
from sidestep.arch.x86_64.relocate import Relocator
from sidestep.arch.x86_64.shapes import (
    add,
    and_,
    at,
    cmp,
    cmpxchg,
    jump_through,
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

SIGNALS: Final = (4, 7, 8, 11)
"""SIGILL, SIGBUS, SIGFPE, SIGSEGV: what a copied instruction can raise. (One that raises SIGTRAP is not
copied.)"""

_SIGBUS, _SIGSEGV = 7, 11
_HIGHEST_SIGNAL = 31
_SIGNAL_SET = sum(1 << number for number in SIGNALS)
SA_SIGINFO: Final = 4
SYS_RT_SIGACTION: Final = 13

# struct siginfo; struct ucontext behind the restorer's address; struct sigaction of the kernel
_SI_CODE, _SI_ADDR = 8, 16
_UC_RSP, UC_RIP = 40 + 15 * 8, 40 + 16 * 8
ACT_HANDLER, ACT_FLAGS, ACT_RESTORER, ACT_SIZE = 0, 8, 16, 32

FRONTS: Final = 128
FRONT_SIZE: Final = 16
FRONTS_SIZE: Final = FRONTS * 2 * FRONT_SIZE
SLOT_SIZE: Final = 8

TABLE_SLOTS: Final = 1 << 18
ENTRY_SIZE: Final = 16
TABLE_SIZE: Final = TABLE_SLOTS * ENTRY_SIZE
FREE, GONE = 0, 1
"""Keys of slots that hold no entry: no search goes on behind a free one."""
IS_COPY, IS_PUSHED = 1, 2
_VALUE_SHIFT: Final = 2


class Entry(NamedTuple):
    """What the table says about the address `key`: {u64 key, u64 value}.

    Of a copied instruction: where its original is (IS_COPY), and whether the stack pointer is 8 bytes lower
    there than at the original (IS_PUSHED). Of an instruction inside a DCR: where control must go that
    arrives there.
    """

    key: int
    value: int

    @classmethod
    def copy(cls, new: int, old: int, pushed: int) -> Entry:
        return cls(new, old << _VALUE_SHIFT | IS_COPY | (IS_PUSHED if pushed else 0))

    @classmethod
    def arrival(cls, old: int, new: int) -> Entry:
        return cls(old, new << _VALUE_SHIFT)


def first_slot(key: int) -> int:
    """Where the search for a key begins: neighbours in memory are neighbours in the table."""
    return key >> 2 & TABLE_SLOTS - 1


def front(slot: int, *, with_siginfo: bool) -> int:
    """How far a front is from the first."""
    return (slot * 2 + (not with_siginfo)) * FRONT_SIZE


class Layout(NamedTuple):
    """Where the parts are: `code` begins with the fronts; `slots` has a word for each; `table` of copies."""

    code: int
    slots: int
    table: int


def emit_fronts(layout: Layout) -> bytes:
    """The fronts, and what they lead to: a context that stands at a copy is taken to the original, then the
    handler is entered as the kernel would have.

    Only for signals that the kernel raised itself: then the instruction will be executed again.
    """
    assembler = Assembler(layout.code)
    for slot in range(FRONTS):
        for _ in range(2):
            assembler.emit(mov("eax", slot * SLOT_SIZE))
            assembler.jump("common")
            assembler.align(FRONT_SIZE)
    assembler.label("common")
    emit(assembler, cmp(at("rsi", _SI_CODE), 0, 32))
    assembler.jump_if("le", "enter")
    emit(assembler, mov("r8", at("rdx", UC_RIP)))
    _look_up(assembler, layout.table, "address")
    emit(assembler, test("r9", IS_COPY))
    assembler.jump_if("e", "address")
    emit(assembler, test("r9", IS_PUSHED))
    assembler.jump_if("e", "not pushed")
    emit(assembler, add(at("rdx", _UC_RSP), 8))
    assembler.label("not pushed")
    emit(assembler, shr("r9", _VALUE_SHIFT), mov(at("rdx", UC_RIP), "r9"))
    assembler.label("address")
    for number in (_SIGSEGV, _SIGBUS):  # theirs is the address of data
        emit(assembler, cmp("edi", number))
        assembler.jump_if("e", "enter")
    # Not always that of the context: a thread may be moved before the signal is delivered.
    emit(assembler, mov("r8", at("rsi", _SI_ADDR)))
    _look_up(assembler, layout.table, "enter")
    emit(assembler, test("r9", IS_COPY))
    assembler.jump_if("e", "enter")
    emit(assembler, shr("r9", _VALUE_SHIFT), mov(at("rsi", _SI_ADDR), "r9"))
    assembler.label("enter")
    emit(
        assembler,
        mov("r8", layout.slots),
        mov("r8", at("r8", 0, "rax")),
        xor("eax", "eax"),
        jump_through("r8"),
    )
    return assembler.finish()


def _look_up(assembler: Assembler, table: int, missing: str) -> None:
    """r9 = the value of the key in r8; to `missing` if there is none. Clobbers rcx, r10, r11.

    The value is read before its key: where a slot changes hands in between, the key that is found there is
    not the one that is looked for.
    """
    emit(
        assembler,
        mov("ecx", "r8d"),
        shl("ecx", 2),
        and_("ecx", TABLE_SIZE - ENTRY_SIZE),
        mov("r10", table),
    )
    slot, found = ("slot", missing), ("found", missing)
    assembler.label(slot)
    emit(assembler, mov("r9", at("r10", 8, "rcx")), mov("r11", at("r10", 0, "rcx")), cmp("r11", "r8"))
    assembler.jump_if("e", found)
    emit(assembler, test("r11", "r11"))
    assembler.jump_if("e", missing)
    emit(assembler, add("ecx", ENTRY_SIZE), and_("ecx", TABLE_SIZE - ENTRY_SIZE))
    assembler.jump(slot)
    assembler.label(found)


class HookCode(NamedTuple):
    """A hook's buffer: its code, and the pairs (original, copy) at which a thread can be moved."""

    code: bytes
    boundaries: tuple[tuple[int, int], ...]


def emit_restorer(
    address: int, instructions: Sequence[Instruction], original: bytes, layout: Layout
) -> HookCode:
    """What stands before the restorer's first instruction: a context that would go on inside a DCR is taken
    to the buffer. rsp points at the user context."""
    assembler = Assembler(address)
    relocator = Relocator(assembler, instructions, original)
    relocator.arrive(0)
    emit(assembler, mov("r8", at("rsp", UC_RIP)))
    _look_up(assembler, layout.table, "return")
    emit(assembler, test("r9", IS_COPY))
    assembler.jump_if("ne", "return")
    emit(assembler, shr("r9", _VALUE_SHIFT), mov(at("rsp", UC_RIP), "r9"))
    assembler.label("return")
    relocator.copy(0)
    relocator.leave()
    arrivals = tuple(relocator.arrivals.items())
    return HookCode(assembler.finish(), (*arrivals, *relocator.boundaries[1:]))


def emit_installer(
    address: int, instructions: Sequence[Instruction], original: bytes, layout: Layout, restorer: int
) -> HookCode:
    """What stands around the system call with which the C library installs handlers: rt_sigaction(edi, rsi,
    rdx) with structures on its own stack. A handler that goes in is replaced by its front; a front that comes
    out, by its handler."""
    assembler = Assembler(address)
    relocator = Relocator(assembler, instructions, original)
    boundaries: list[tuple[int, int]] = []
    for index, instruction in enumerate(instructions):
        relocator.arrive(index)
        boundaries.append((instruction.ip, relocator.arrivals[instruction.ip]))
        if is_syscall(instruction):
            _install_front(assembler, layout, restorer)
        relocator.copy(index)
        if is_syscall(instruction):
            _show_handler(assembler, layout)
            emit(assembler, mov("rcx", instruction.next_ip))
    relocator.leave()
    # Behind the system call a thread may still hold a front, so it cannot be moved from there.
    return HookCode(assembler.finish(), (*boundaries, relocator.boundaries[-1]))


def _install_front(assembler: Assembler, layout: Layout, restorer: int) -> None:
    emit(assembler, test("rsi", "rsi"))
    assembler.jump_if("e", "call")
    emit(assembler, cmp("edi", _HIGHEST_SIGNAL))
    assembler.jump_if("a", "call")
    emit(assembler, mov("ecx", "edi"), mov("eax", _SIGNAL_SET))
    assembler.raw(_BT_EAX_ECX)
    assembler.jump_if("ae", "call")
    emit(assembler, mov("r11", at("rsi", ACT_HANDLER)), cmp("r11", 1))
    assembler.jump_if("be", "call")  # SIG_DFL, SIG_IGN
    emit(assembler, mov("rax", restorer), cmp(at("rsi", ACT_RESTORER), "rax"))
    assembler.jump_if("ne", "call")
    emit(assembler, mov("rcx", layout.slots))
    assembler.label("front")
    emit(assembler, mov("rax", at("rcx")), cmp("rax", "r11"))
    assembler.jump_if("e", "front found")
    emit(assembler, test("rax", "rax"))
    assembler.jump_if("ne", "next front")
    emit(assembler, cmpxchg(at("rcx"), "r11", lock=True))
    assembler.jump_if("e", "front found")
    emit(assembler, cmp("rax", "r11"))
    assembler.jump_if("e", "front found")
    assembler.label("next front")
    emit(
        assembler,
        add("rcx", SLOT_SIZE),
        mov("rax", layout.slots + FRONTS * SLOT_SIZE),
        cmp("rcx", "rax"),
    )
    assembler.jump_if("b", "front")
    assembler.jump("call")
    assembler.label("front found")
    emit(
        assembler,
        mov("rax", layout.slots),
        sub("rcx", "rax"),
        shl("rcx", 2),
        mov("rax", layout.code),
        add("rcx", "rax"),
        test(at("rsi", ACT_FLAGS), SA_SIGINFO, 32),
    )
    assembler.jump_if("ne", "put front")
    emit(assembler, lea("rcx", at("rcx", FRONT_SIZE)))
    assembler.label("put front")
    emit(
        assembler,
        mov(at("rsi", ACT_HANDLER), "rcx"),
        or_(at("rsi", ACT_FLAGS), SA_SIGINFO, 32),
    )
    assembler.label("call")
    emit(assembler, mov("eax", SYS_RT_SIGACTION))


_BT_EAX_ECX: Final = b"\x0f\xa3\xc8"  # bt %ecx,%eax: the carry is that bit


def _show_handler(assembler: Assembler, layout: Layout) -> None:
    """rax, the call's result, is kept."""
    emit(assembler, test("rax", "rax"))
    assembler.jump_if("ne", "shown")
    emit(assembler, test("rdx", "rdx"))
    assembler.jump_if("e", "shown")
    emit(
        assembler,
        mov("rcx", at("rdx", ACT_HANDLER)),
        mov("r11", layout.code),
        sub("rcx", "r11"),
        cmp("rcx", FRONTS_SIZE),
    )
    assembler.jump_if("ae", "shown")
    emit(assembler, test("rcx", FRONT_SIZE))
    assembler.jump_if("e", "with siginfo")
    emit(assembler, and_(at("rdx", ACT_FLAGS), ~SA_SIGINFO, 32))
    assembler.label("with siginfo")
    emit(
        assembler,
        shr("ecx", (2 * FRONT_SIZE).bit_length() - 1),
        mov("r11", layout.slots),
        mov("rcx", at("r11", 0, "rcx", SLOT_SIZE)),
        mov(at("rdx", ACT_HANDLER), "rcx"),
    )
    assembler.label("shown")
