"""What an engine offers to the code that knows what a probe means: text changed in whole batches."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from sidestep.address import Range
from sidestep.errors import Refusal
from sidestep.events.layout import JUMP_SIZE

if TYPE_CHECKING:
    from sidestep.arch.x86_64.detour import Action
    from sidestep.arch.x86_64.insn import Instruction
    from sidestep.arch.x86_64.liveness import Liveness
    from sidestep.arch.x86_64.relocate import Point


JUMP_OPCODE = b"\xe9"


def jump(site: int, target: int) -> bytes:
    """The jump at `site` to `target`, which is within reach."""
    return JUMP_OPCODE + (target - (site + JUMP_SIZE)).to_bytes(4, "little", signed=True)


class Buffer(NamedTuple):
    """A detour buffer, ready to be entered at `address`.

    `boundaries`: (original address, address in the buffer) where the machine's state is that of the program
    at the original address. The copy of an instruction lies behind its actions, so that a thread moved there
    is not counted again.
    `copies`: every copied instruction, as in Relocator.
    `arrivals`: (original address, address in the buffer) of each instruction inside the DCR, the first left
    out: where control must go that arrives there.
    """

    address: int
    code: bytes
    boundaries: tuple[tuple[int, int], ...]
    copies: tuple[Point, ...] = ()
    arrivals: tuple[tuple[int, int], ...] = ()

    @property
    def span(self) -> Range:
        return Range(self.address, self.address + len(self.code))


@dataclass(frozen=True, slots=True)
class Label:
    """A probe in the table that other controllers read: its index there, its probepoint, and how it is
    shown."""

    index: int
    address: int
    name: str
    flags: int = 0  # of its record (events.layout)


@dataclass(frozen=True, slots=True, eq=False)
class Detour:
    """A jump in the text and the buffer that it leads to."""

    dcr: Range  # the detoured code region: whole instructions, the jump is at its start
    interior: tuple[int, ...]  # where its instructions start, but the first: nobody may return there
    exits: tuple[int, ...]  # where its buffer leads to: the end of the DCR, targets of branches
    original: bytes  # the bytes that the jump replaces
    buffer: Buffer
    labels: tuple[Label, ...]

    @property
    def site(self) -> int:
        return self.dcr.start

    @property
    def jump(self) -> bytes:
        return jump(self.site, self.buffer.address)

    @property
    def written(self) -> Range:
        return Range(self.site, self.site + JUMP_SIZE)


class Change(NamedTuple):
    """What a stretch of code is to become: the `old` detours are taken out, `new` is put in (None:
    nothing)."""

    old: tuple[Detour, ...]
    new: Detour | None


class SignalPath(NamedTuple):
    """Where the program's signal handlers come and go, as run-time addresses.

    `restorer` has the instruction that handlers return to, `installer` those that install them: a move of the
    system call's number, and the call. `near` is the module that both are in.
    """

    restorer: Range
    installer: Range
    near: Range


class Memory(Protocol):
    """The target's memory."""

    def read(self, address: int, size: int) -> bytes:
        """All of it, or OSError EFAULT."""

    def read_available(self, address: int, size: int) -> bytes:
        """As many of the bytes as there are, from the first on."""

    def write(self, address: int, data: bytes) -> None:
        """Write through page protections; OSError EFAULT where there is no memory."""


class Inspected(Protocol):
    """A process that is looked at."""

    @property
    def pid(self) -> int: ...
    @property
    def memory(self) -> Memory: ...
    @property
    def held(self) -> bool:
        """It was launched and has not begun."""

    hides_contexts: bool
    """Interrupted contexts may wait elsewhere than on the threads' stacks: all memory is searched."""

    @property
    def has_shadow_stack(self) -> bool:
        """Whether returns are checked against a second stack."""

    @property
    def resident(self) -> int:
        """Bytes of memory that it has now."""

    def catches(self, *signals: int) -> bool:
        """Whether the program has a handler for one of them."""


class Engine(Protocol):
    """Puts detours into a target and takes them out."""

    @property
    def alive(self) -> bool:
        """The target has not ended."""

    @property
    def view(self) -> mmap.mmap:
        """The controller's mapping of the shared memory (events.layout)."""

    def build(
        self,
        *,
        near: Range,
        dcr: Range,
        instructions: Sequence[Instruction],
        original: bytes,
        actions: Mapping[int, Sequence[Action]],
        liveness: Callable[[int], Liveness],
        labels: tuple[Label, ...],
        room: int,
    ) -> Detour:
        """Write a detour buffer within reach of `near`; nothing leads into it yet. `original` has the DCR's
        bytes.

        `room` is what the batch is likely to need in all. Raises ProbeError when an instruction cannot be
        relocated there.
        """

    def allocate(self, words: int) -> int:
        """Memory for maps, all 0, that the target and the controller share; its address in the target."""

    def words(self, address: int, count: int) -> memoryview:
        """That memory, as unsigned words."""

    def place_code(self, near: Range, emit: Callable[[int, Mapping[str, int]], bytes]) -> int:
        """Put position-independent code into the target, which stays there until the end; its address.
        `emit` gets that and the addresses of what such code may refer to, by name."""

    def guard_faults(self, path: SignalPath, labels: tuple[Label, Label]) -> None:
        """From now on the program's handlers for faults see no address of ours. Raises TargetError or
        ProbeError, with nothing changed."""

    def apply(self, changes: Sequence[Change]) -> dict[int, Refusal]:
        """Make all changes in one stop, in forked children, too. A change that cannot be made leaves its
        stretch as it was: the refusals, by the index of the change."""

    def show_disabled(self, label: Label) -> None:
        """Show a disabled probe in the table that other controllers read."""

    def forget(self, index: int) -> None:
        """Take a probe that has no jump out of that table."""

    def is_quiet(self) -> bool:
        """Whether every thread, also of forked children, was seen outside of code of ours since the call."""

    def settle(self, timeout: float = 1.0) -> bool:
        """Wait until no thread is in code that was taken out: its counters are final then."""

    @property
    def shares_pid_namespace(self) -> bool:
        """Whether the pids that the target sees are those that we see."""

    @property
    def cpus(self) -> int:
        """Possible CPUs: each has a ring."""

    def is_alive(self, pid: int) -> bool:
        """Whether a process exists that is called so by us, or by itself."""

    def has_children(self) -> bool:
        """Whether another process has our memory."""

    def remove(self, detours: Sequence[Detour]) -> list[str]:
        """Leave every process as it was. What had to stay, in sentences."""

    def close(self) -> None:
        """Let go of the controller's side."""
