"""The inline engine: one session's memory, buffers and jumps in a process, and in the children that inherit
them."""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Callable, Mapping, Sequence

from sidestep import errors
from sidestep.address import PAGE, Range
from sidestep.arch.x86_64.detour import Action, DetourBuffer, Surroundings, emit_buffer
from sidestep.arch.x86_64.fetch import Resolve
from sidestep.arch.x86_64.insn import Instruction, direct_branch_target, is_syscall
from sidestep.arch.x86_64.liveness import Liveness
from sidestep.arch.x86_64.recording import CpuNumber, Rings
from sidestep.arch.x86_64.runtime import Runtime
from sidestep.errors import ProbeError, Refusal, TargetError
from sidestep.events import layout
from sidestep.events.layout import JUMP_SIZE
from sidestep.spec import SymbolMemory
from sidestep.target.base import Buffer, Change, Detour, Label, SignalPath
from sidestep.target.process import fronts, procfs, remains
from sidestep.target.process.areas import (
    CodeArena,
    SharedArea,
    create_shared,
    unmap,
)
from sidestep.target.process.family import Family
from sidestep.target.process.natives import Natives, runtime_symbols
from sidestep.target.process.poke import OurCode, TextChange, addresses_in_use, follow, in_flight, take_out
from sidestep.target.process.process import Process, Window
from sidestep.target.process.processor import cpu_count, has_rdpid, reads_fs_base
from sidestep.target.process.signals import SignalLayer
from sidestep.target.process.space import CodeSpace
from sidestep.target.process.stacks import lying_in
from sidestep.target.process.threads import ThreadFacts, thread_facts
from sidestep.target.process.turns import in_turn
from sidestep.uninterrupted import uninterrupted

DETACH_PATIENCE = 5.0  # seconds for threads to leave the buffers
SYSCALL_SIZE = 2
RSEQ_OFFSET = SymbolMemory(None, "__rseq_offset")


class InlineEngine:
    """`apply()` changes the text; `remove()` leaves the process, and those that inherited our memory, as
    they were."""

    def __init__(self, process: Process, resolve_variable: Resolve) -> None:
        self.process = process
        self._resolve_variable = resolve_variable
        self._rings: SharedArea | None = None
        self._ring_size = 0
        self._signals: SignalLayer | None = None
        self._unused_layer: SignalLayer | None = None
        self._retired: list[Detour] = []  # threads may still be in their buffers
        self._given_up = False  # what is left is for whoever comes
        self._placed: set[Detour] = set()
        self._stale: list[Detour] = []  # gone from the target, but maybe not from a child
        self._runtimes: dict[int, Runtime] = {}
        self._hides_contexts = process.hides_contexts
        self._around: dict[int, Surroundings] = {}
        mapping = [(0, layout.DATA_SIZE, 0)]

        self.space = CodeSpace(process, self._start_arena, lambda _: self._write_header())

        def begin(window: Window) -> tuple[SharedArea, ThreadFacts]:
            # In one stop, so that of two controllers the second sees the first.
            self._refuse_company(window)
            facts = thread_facts(window, self._rseq_offset())
            self.shared = create_shared(window, layout.DATA_SIZE, mapping)
            layout.initialise(self.shared.view)
            self._write_header()
            return self.shared, facts

        self.shared, self._facts = process.in_window(begin)
        self._family = Family(process, self.shared.inode)
        self._natives = Natives(process, self.space)

    def _rseq_offset(self) -> int | None:
        """Where the C library says the rseq area of each thread is, from its fs base; None if it says
        nothing."""
        try:
            address = self._resolve_variable(RSEQ_OFFSET)
            return int.from_bytes(self.process.memory.read(address, 8), "little", signed=True)
        except (ProbeError, OSError):
            return None

    def _refuse_company(self, window: Window) -> None:
        for session in remains.sessions(self.process.pid, window.maps):
            who = f"pid {session.header.controller_pid}"
            raise TargetError(f"process {self.process.pid}", errors.OTHER_SESSION, who)

    def _write_header(self) -> None:
        arenas = tuple(layout.Arena(arena.address, arena.size) for arena in self.space.arenas)
        layout.Header(
            controller_pid=0 if self._given_up else os.getpid(),
            controller_start=procfs.read_status(os.getpid()).start_time,
            target_pid=self.process.pid,
            data_address=self.shared.address,
            ring_count=self.ring_count if self._rings else 0,
            ring_size=self._ring_size,
            rings_address=self._rings.address if self._rings else 0,
            arenas=arenas,
            hides_contexts=self._hides_contexts,
            signal_layer=self._signals.layout.code if self._signals else 0,
        ).write(self.shared.view)

    # Buffers

    def _start_arena(self, arena: CodeArena, address: int) -> bytes:
        page = self.space.arenas[0].process_page
        if arena is self.space.arenas[0]:
            # A child of vfork runs in this memory, too: whose it is must not depend on who comes first.
            pid = procfs.read_status(self.process.pid).own_pid
            self.process.memory.write(page + layout.PROCESS_PID_OFFSET, struct.pack("<I", pid))
            self.process.memory.write(page + layout.THREAD_TABLE_OFFSET, layout.FIRST_THREAD_SLOT)
        runtime = Runtime(address, page, self.shared.address, reads_fs_base=reads_fs_base())
        self._runtimes[arena.address] = runtime
        return runtime.code

    def _surroundings(self, arena: CodeArena) -> Surroundings:
        known = self._around.get(arena.address)
        if known is None:
            known = self._around[arena.address] = self._look_around(arena)
        return known

    def _look_around(self, arena: CodeArena) -> Surroundings:
        how: CpuNumber = "rdpid" if has_rdpid() else "lsl"
        rings = None
        if self._rings is not None:
            rings = Rings(
                self._rings.address,
                cpu_count(),
                self._ring_size,
                how,
                layout.THREAD_RINGS,
                self._facts.cpu_offset,
            )
        return Surroundings(
            runtime=self._runtimes[arena.address],
            by_thread=self._facts.by_thread,
            tid_offset=self._facts.tid_offset,
            rings=rings,
            resolve=self._resolve_variable,
            cpu_number=how,
        )

    # Native handlers

    def allocate(self, words: int) -> int:
        """See base.Engine."""
        return self._natives.allocate(words)

    def words(self, address: int, count: int) -> memoryview:
        """See base.Engine."""
        return self._natives.words(address, count)

    def place_code(self, near: Range, emit: Callable[[int, Mapping[str, int]], bytes]) -> int:
        """See base.Engine."""
        arena = self.space.reserve(near, 2 * PAGE)
        around = self._surroundings(arena)
        symbols = dict(runtime_symbols(around.runtime))
        if around.rings is not None:
            symbols["reserve"] = self._natives.reserve(
                near, around.runtime, around.rings, self._facts.tid_offset
            )
        return self._natives.place(near, lambda address: emit(address, symbols))

    @property
    def alive(self) -> bool:
        return self.process.is_same_program

    @property
    def view(self) -> mmap.mmap:
        return self.shared.view

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
        """See base.Engine."""
        made: list[DetourBuffer] = []

        def emit(arena: CodeArena, address: int) -> bytes:
            built = emit_buffer(address, instructions, original, actions, liveness, self._surroundings(arena))
            made.append(built)
            return built.code

        address, code = self.space.place(near, emit, room)
        emitted = made[-1]
        # What follows a system call is no copy of an instruction; at the end of the DCR nothing can fault.
        calls = {instruction.ip for instruction in instructions if is_syscall(instruction)}
        behind = {point.new + SYSCALL_SIZE for point in emitted.copies if point.old in calls}
        copies = tuple(point for point in emitted.copies if point.old != dcr.end and point.new not in behind)
        arrivals = tuple(arrival for arrival in emitted.arrivals if arrival[0] != dcr.start)
        buffer = Buffer(address, code, emitted.boundaries, copies, arrivals)
        # Asked now: in the stop, when the record is written, it would be too late.
        fits = layout.moves_fit(dcr.start, address, buffer.boundaries)
        if not fits or (self._signals and not self._signals.table.promise(buffer)):
            self.space.release(buffer.span)
            detail = "" if fits else "their buffer here is too large"
            raise ProbeError(labels[0].name, errors.TOO_MANY_PROBES, detail)
        self.process.memory.write(address, code)
        interior = tuple(instruction.ip for instruction in instructions[1:])
        targets = map(direct_branch_target, instructions)
        exits = (dcr.end, *(target for target in targets if target is not None and target not in dcr))
        return Detour(dcr, interior, exits, original[:JUMP_SIZE], buffer, labels)

    # Text

    def apply(self, changes: Sequence[Change]) -> dict[int, Refusal]:
        """See base.Engine. Children that inherited an `old` detour get the `new` one where that can be.

        A record must never describe a jump that is not written yet instead of one that is: records of probes
        that have a jump already change in the stop, when that jump is out; those of new probes are written
        before.
        """
        if self.process.hides_contexts != self._hides_contexts:
            self._hides_contexts = self.process.hides_contexts
            self._write_header()
        rewritten = {label.index for change in changes for detour in change.old for label in detour.labels}
        for change in changes:
            if change.new is not None:
                self._note(change.new, lambda index: index not in rewritten)
        poke = TextChange(changes, self._retired, self._signals.table if self._signals else None)

        def note(detour: Detour) -> None:
            self._note(detour, lambda index: index in rewritten)

        def work(window: Window) -> tuple[dict[int, Refusal], set[int], bytes]:
            refused = poke.make(window, self.space.routines, note)
            return refused, addresses_in_use(window, self.space.routines), procfs.last_pid()

        try:
            refused, in_use, newest = in_turn(lambda: self.process.in_window(work))
        except BaseException:
            poke.withdraw()
            raise
        made = [change for i, change in enumerate(changes) if i not in refused]
        self._placed.difference_update(detour for change in made for detour in change.old)
        self._placed.update(change.new for change in made if change.new is not None)
        followed = [change for change in made if change.old]
        if followed:
            self._change_children(followed, newest)
        # Only now: while a child has a jump, whoever comes after a killed controller must find its record.
        for change in followed:
            for detour in change.old:
                self._forget(detour, () if change.new is None else (change.new,))
                self._retired.append(detour)
        for index in refused:
            new = changes[index].new
            if new is not None:
                self._forget(new, changes[index].old)
                self._retired.append(new)
        self._recycle(in_use)
        return refused

    def _change_children(self, changes: Sequence[Change], newest: bytes) -> None:
        """Make the changes in every child. The target has changed already, so nothing is raised."""
        seen: set[int] = set()
        guard = self._signals.guard if self._signals else None
        detours = [*self._placed, *(detour for change in changes for detour in change.old)]
        code = OurCode(self.space.code_spans, self.space.routines, detours)
        # A child may fork before its turn comes: its own child is met in the next round.
        while fresh := [pid for pid in self._family.children(newest) if pid not in seen]:
            seen.update(fresh)
            for child in fresh:
                try:
                    self._family.in_child(
                        child, lambda window: follow(window, changes, self._stale, code, guard)
                    )
                except (TargetError, OSError):  # stuck, or traced by somebody: `remove` tries again
                    self._stale += [detour for change in changes for detour in change.old]

    def _note(self, detour: Detour, concerned: Callable[[int], bool]) -> None:
        """Write the records of those of its probes whose index is `concerned`."""
        for label in detour.labels:
            if concerned(label.index):
                self._record(label, detour).write(self.shared.view, label.index)

    @staticmethod
    def _record(label: Label, detour: Detour | None) -> layout.ProbeRecord:
        """A probe's record; without a detour that of a disabled probe."""
        return layout.ProbeRecord(
            address=label.address,
            site=detour.site if detour else label.address,
            buffer=detour.buffer.address if detour else 0,
            state=layout.STATE_ARMED if detour else layout.STATE_DISABLED,
            original=detour.original if detour else b"",
            patched=detour.jump if detour else b"",
            flags=label.flags,
            name=label.name,
            moves=detour.buffer.boundaries if detour else (),
        )

    def show_disabled(self, label: Label) -> None:
        """See base.Engine."""
        self._record(label, None).write(self.shared.view, label.index)

    def forget(self, index: int) -> None:
        """See base.Engine."""
        layout.set_probe_state(self.shared.view, index, layout.STATE_NONE)

    def _forget(self, detour: Detour, instead: Sequence[Detour]) -> None:
        kept = {label.index for other in instead for label in other.labels}
        for label in detour.labels:
            if label.index not in kept:
                self.forget(label.index)

    def _recycle(self, in_use: set[int]) -> None:
        """Free the retired buffers that no address in use lies in: nothing leads there, so nobody ever comes.
        A child has its own copies of them."""
        if self._signals and any(address in self._signals.returning for address in in_use):
            return
        retired, self._retired = self._retired, []
        busy = lying_in(in_use, [detour.buffer.span for detour in retired])
        for detour in retired:
            if detour.buffer.span in busy:
                self._retired.append(detour)
            else:
                self._release(detour)

    def _release(self, detour: Detour) -> None:
        if self._signals:
            self._signals.table.drop_copies([detour])  # written in the next stop
        self.space.release(detour.buffer.span)

    def is_quiet(self, tries: int = 20) -> bool:
        """See base.Engine."""
        return self._family.all_done(lambda window: not in_flight(window, self.space.code_spans), tries=tries)

    def settle(self, timeout: float = 1.0) -> bool:
        """Wait until no thread is in a retired buffer: then the counters of what was taken out are final."""
        deadline = time.monotonic() + timeout
        spans = [detour.buffer.span for detour in self._retired]
        if spans and self._signals:
            spans.append(self._signals.returning)

        def in_use(window: Window) -> set[Range]:
            return in_flight(window, spans, self.space.routines)

        while spans and self.alive:
            if not in_turn(lambda: self.process.in_window(in_use)):
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        return True

    # The signal layer

    @property
    def hooks(self) -> list[Range]:
        """The text that belongs to the signal layer."""
        return [hook.dcr for hook in self._signals.hooks] if self._signals else []

    def guard_faults(self, path: SignalPath, labels: tuple[Label, Label]) -> None:
        """See base.Engine."""
        if self._signals is None:
            uninterrupted(lambda: self._guard_faults(path, labels))

    def _guard_faults(self, path: SignalPath, labels: tuple[Label, Label]) -> None:
        layer = self._unused_layer or SignalLayer(self.process, self.space, path, labels)
        self._unused_layer = layer
        layer.expect(self._placed)
        self._signals = layer
        self._write_header()
        for hook in layer.hooks:
            self._note(hook, lambda index: True)
        try:
            in_turn(lambda: self.process.in_window(layer.begin))
        except BaseException:
            self._signals = None
            self._write_header()
            for hook in layer.hooks:
                self._forget(hook, ())
            raise
        self._placed.update(layer.hooks)

    # Rings

    def open_rings(self, wanted: int | None = None) -> SharedArea:
        """The rings, made when the first event is registered. `wanted`: bytes of each."""
        if self._rings is None:
            self._ring_size = layout.ring_size_for(self.ring_count, wanted)
            mappings = layout.ring_mappings(self.ring_count, self._ring_size)
            size = layout.file_size(self.ring_count, self._ring_size)
            self._rings = in_turn(
                lambda: self.process.in_window(lambda window: create_shared(window, size, mappings))
            )
            self._around.clear()
            self._write_header()
        return self._rings

    @property
    def ring_count(self) -> int:
        return layout.ring_count_for(cpu_count())

    @property
    def ring_size(self) -> int:
        return self._ring_size

    # Children, and the end

    @property
    def cpus(self) -> int:
        return cpu_count()

    @property
    def shares_pid_namespace(self) -> bool:
        """See base.Engine; False also when the process has ended."""
        try:
            return os.readlink(f"/proc/{self.process.pid}/ns/pid") == os.readlink("/proc/self/ns/pid")
        except OSError:
            return False

    def is_alive(self, pid: int) -> bool:
        """See base.Engine. A child in a pid namespace of its own has a number there that we may not have."""
        return os.path.exists(f"/proc/{pid}") or self._family.is_called(pid)

    def has_children(self) -> bool:
        """Whether another process has our memory."""
        return bool(self._family.children())

    def remove(self, detours: Sequence[Detour], timeout: float = DETACH_PATIENCE) -> list[str]:
        """Take everything out of every process that has our memory. What could not be removed is returned, in
        sentences; `sidestep clean` can remove it later."""
        # The shared area goes last: it says where the others are, should we be killed in between.
        rings = [self._rings.span] if self._rings else []
        spans = [*self.space.spans, *self._natives.spans, *rings, self.shared.span]
        layer = self._signals
        detours = [*detours, *self._stale, *([layer.restorer_hook] if layer else [])]

        def leave(window: Window) -> bool:
            take_out(window, detours)
            if layer is not None:
                fronts.evacuate(window, layer.layout, self.space.code_spans)
            if in_flight(window, self.space.code_spans):
                return False
            if layer is not None:
                layer.end(window)
            unmap(window, spans)
            return True

        problems = self._family.leave(leave, timeout)
        if problems:
            self._given_up = True
            self._write_header()
        return problems

    def close(self) -> None:
        """Let go of the controller's side."""
        self.shared.close()
        self._natives.close()
        if self._rings is not None:
            self._rings.close()
