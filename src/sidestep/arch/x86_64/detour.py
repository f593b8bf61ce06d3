"""Detour buffers: what a probepoint's jump leads to.

For each instruction of the DCR in turn: the actions of its probes, in the order of registration, then the
instruction itself, relocated; behind the last one a jump back. Around the actions exactly those registers
are saved that they clobber and the program (or a fetch argument) still needs, and the flags only if they are
live.

What is seldom needed stands behind the jump back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from sidestep.arch.x86_64.counting import (
    LOCKED_REGISTERS,
    THREAD_REGISTERS,
    count_by_process,
    count_by_thread,
)
from sidestep.arch.x86_64.fetch import WORKING_REGISTERS, Resolve, fetched_registers
from sidestep.arch.x86_64.frame import Emission, Frame, clobbered
from sidestep.arch.x86_64.handlers import CLOBBERED, CallCompiler, NativeCall
from sidestep.arch.x86_64.insn import Instruction
from sidestep.arch.x86_64.liveness import SCRATCH_REGISTERS, Liveness
from sidestep.arch.x86_64.recording import CpuNumber, EventCompiler, Rings
from sidestep.arch.x86_64.relocate import Point, Relocator
from sidestep.arch.x86_64.runtime import Runtime
from sidestep.arch.x86_64.shapes import LAHF, RESTORE_OVERFLOW, SAHF, SETO_AL, mov
from sidestep.arch.x86_64.writer import Assembler
from sidestep.errors import NO_SUCH_SYMBOL, ProbeError
from sidestep.events import layout
from sidestep.events.record import EventProgram
from sidestep.spec import SymbolMemory


@dataclass(frozen=True, slots=True)
class Count:
    """Counts the hit under the probe's index in the shared memory."""

    index: int


@dataclass(frozen=True, slots=True)
class Record:
    """Counts the hit; then, if it passes the filters, counts the match and records an event.

    `emit` False: nothing is recorded, the match is only counted.
    """

    program: EventProgram
    emit: bool = True


Action = Count | Record | NativeCall


_COUNTING = ("rax", "r11")


def scratch(actions: Iterable[Action]) -> int:
    """How many dead registers are of use to the actions of one probepoint."""
    counts = all(isinstance(action, Count) for action in actions)
    return THREAD_REGISTERS if counts else len(SCRATCH_REGISTERS)


def _no_variables(variable: SymbolMemory) -> int:
    raise ProbeError(str(variable), NO_SUCH_SYMBOL, "variables cannot be looked up here")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all buffers of an arena have in common.

    `by_thread`: fs:0 holds the fs base in the threads that get here (true once a program of the usual ABI
    has set up its threads; one that has something else there is found out and gets no block). `tid_offset`:
    where the tid is from the fs base, if that was verified; else the kernel is asked. `rings` may be None
    as long as nothing is recorded.
    """

    runtime: Runtime
    by_thread: bool = True
    tid_offset: int | None = None
    rings: Rings | None = None
    resolve: Resolve = field(default=_no_variables)
    cpu_number: CpuNumber = "lsl"


class DetourBuffer(NamedTuple):
    """A buffer's code for `address`.

    `boundaries`: (old, new) as in Relocator: where a thread goes that is stopped at an instruction of the
    DCR. It lands behind the actions, so that nothing is counted twice. `arrivals`: (old, new) too, where
    control goes that arrives there. `copies` are the Relocator's points, `starts` where the actions begin.
    """

    address: int
    code: bytes
    boundaries: tuple[tuple[int, int], ...]
    arrivals: tuple[tuple[int, int], ...]
    copies: tuple[Point, ...]
    starts: tuple[Point, ...]

    @property
    def points(self) -> list[Point]:
        """Every place in the buffer where the program's state is at hand, by rising addresses. Elsewhere a
        thread cannot be taken back."""
        return sorted({*self.copies, *self.starts})


def emit_buffer(
    address: int,
    instructions: Sequence[Instruction],
    original: bytes,
    actions: Mapping[int, Sequence[Action]],
    liveness: Callable[[int], Liveness],
    surroundings: Surroundings,
) -> DetourBuffer:
    """The buffer for a DCR of `instructions` with the `original` bytes.

    `actions` has the actions by the address of the instruction that they stand at; `liveness` tells what is
    live at such an address. Raises ProbeError when an instruction cannot be relocated, or an event not be
    made.
    """
    assembler = Assembler(address)
    emission = Emission(assembler)
    calls = [each for there in actions.values() for each in there if isinstance(each, NativeCall)]
    led_to = [place for call in calls if call.goes_within for place in call.exits or ()]
    relocator = Relocator(assembler, instructions, original, led_to)
    for index, instruction in enumerate(instructions):
        relocator.arrive(index)
        probed = actions.get(instruction.ip)
        if probed:
            _emit_actions(emission, probed, liveness(instruction.ip), surroundings, relocator.jump)
        relocator.copy(index)
    relocator.leave()
    emission.finish_later()
    arrivals = tuple(relocator.arrivals.items())
    starts = tuple(Point(new, old) for old, new in arrivals if old in actions)
    boundaries, copies = tuple(relocator.boundaries), tuple(relocator.points)
    return DetourBuffer(address, assembler.finish(), boundaries, arrivals, copies, starts)


def _emit_actions(
    emission: Emission,
    actions: Sequence[Action],
    live: Liveness,
    surroundings: Surroundings,
    go_on: Callable[[int], None],
) -> None:
    counts = [action.index for action in actions if isinstance(action, Count)]
    if len(counts) == len(actions):
        _emit_counts(emission, counts, live, surroundings)
        return
    frame = Frame(emission.assembler)
    programs = [action.program for action in actions if isinstance(action, Record)]
    calls = [action for action in actions if isinstance(action, NativeCall)]
    fetched = frozenset[str]().union(*map(fetched_registers, programs))
    working = dict.fromkeys(WORKING_REGISTERS if programs else ())
    working |= dict.fromkeys(CLOBBERED if calls else ())
    working |= dict.fromkeys(register for call in calls for register in call.saved if register == "rcx")
    leaves = any(call.leaves for call in calls)
    # Where a handler goes on elsewhere, something else may be live.
    live_registers = frozenset(working) if leaves else live.registers
    saved = clobbered([*working], live_registers, fetched.union(*(call.saved for call in calls)))
    whole_flags = "rflags" in fetched or any(call.uses_flags for call in calls)
    flags = live.flags or any(call.goes_within for call in calls)
    frame.enter(saved, flags=flags, whole_flags=whole_flags)
    for number, action in enumerate(actions):
        if isinstance(action, Count):
            _count(emission, frame.depth, action.index, _COUNTING, surroundings)
        elif isinstance(action, NativeCall):
            behind = [_hits(other) for other in actions[number + 1 :]]
            _emit_call(emission, frame, action, behind, surroundings, go_on)
        else:
            _emit_record(emission, frame, action, surroundings)
    frame.leave()


def _hits(action: Action) -> int:
    """The counter of a probe's hits."""
    if isinstance(action, Count):
        return action.index
    return action.hits if isinstance(action, NativeCall) else action.program.index


def _emit_call(
    emission: Emission,
    frame: Frame,
    call: NativeCall,
    behind: Sequence[int],
    surroundings: Surroundings,
    go_on: Callable[[int], None],
) -> None:
    """`behind` are the counters of the probes that do not run where the handler leaves: control arrived at
    them all the same."""

    def count_others() -> None:
        for index in behind:
            _count(emission, frame.depth, index, ("r10", "r11"), surroundings)

    _count(emission, frame.depth, call.hits, ("r10", "r11"), surroundings)
    if not surroundings.by_thread:
        emission.assembler.emit(mov("r10", surroundings.runtime.counters(layout.SCRATCH_BLOCK)))
    compiler = CallCompiler(
        emission,
        frame,
        surroundings.runtime,
        call,
        surroundings.tid_offset,
        surroundings.cpu_number,
        count_others,
        go_on,
    )
    compiler.call()


def _emit_record(emission: Emission, frame: Frame, action: Record, surroundings: Surroundings) -> None:
    program, rings = action.program, surroundings.rings
    _count(emission, frame.depth, program.index, _COUNTING, surroundings)
    keeps_block = surroundings.by_thread and (action.emit or program.tids is not None)
    if keeps_block:
        frame.push("rax")
    compiler = EventCompiler(
        emission,
        frame,
        surroundings.runtime,
        program,
        rings,
        surroundings.tid_offset,
        surroundings.resolve,
        frame.depth if keeps_block else None,
    )
    compiler.enter()
    if program.matched_index is not None:
        _count(emission, frame.depth, program.matched_index, _COUNTING, surroundings)
    if action.emit:
        compiler.record()
    compiler.leave()
    if keeps_block:
        frame.release(8)


def _emit_counts(
    emission: Emission, indexes: Sequence[int], live: Liveness, surroundings: Surroundings
) -> None:
    number = THREAD_REGISTERS if surroundings.by_thread else LOCKED_REGISTERS
    around = _around_counts(live.dead, live.flags, number)
    emission.assembler.raw(around.before)
    for index in indexes:
        _count(emission, around.depth, index, around.registers, surroundings)
    emission.assembler.raw(around.behind)


class _AroundCounts(NamedTuple):
    """What stands before and behind the counts of one probepoint, which registers they use, and how far the
    stack pointer is below the program's."""

    before: bytes
    behind: bytes
    registers: tuple[str, str]
    depth: int


@cache
def _around_counts(dead: tuple[str, ...], flags: bool, number: int) -> _AroundCounts:
    """With as few registers saved as possible; live `flags` wait in rax meanwhile."""
    usable = [register for register in dead if register != "rax" or not flags]
    others = [r for r in SCRATCH_REGISTERS if r not in usable and (r != "rax" or not flags)]
    scratch = (usable + others)[:number]
    saved = [register for register in scratch if register not in dead]
    if flags and "rax" not in dead:
        saved.append("rax")
    assembler = Assembler(0)
    frame = Frame(assembler)
    if saved:
        frame.enter(saved, flags=False)
    if flags:
        assembler.raw(LAHF + SETO_AL)
    depth, size = frame.depth, assembler.here
    if flags:
        assembler.raw(RESTORE_OVERFLOW + SAHF)
    if saved:
        frame.leave()
    code = assembler.finish()
    return _AroundCounts(code[:size], code[size:], (scratch[0], scratch[-1]), depth)


def _count(
    emission: Emission, depth: int, index: int, registers: tuple[str, str], surroundings: Surroundings
) -> None:
    if surroundings.by_thread:
        count_by_thread(emission, depth, surroundings.runtime, index, registers)
    else:
        count_by_process(emission, depth, surroundings.runtime, index, registers[0])
