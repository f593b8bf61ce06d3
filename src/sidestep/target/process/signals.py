"""The signal layer of one session: the program's own handlers for faults see its own addresses only.

The kernel has a front of ours instead of each such handler (fronts.py, arch.x86_64.signal_code). Two hooks in
the text of the C library, jumps like those of probes, go with them: at the system call that installs
handlers, and at the restorer, to which handlers return.

A controller may die at any point: hooks and fronts work without it, and the session's header says where the
fronts are. They are taken out in the stop in which no thread is in code of ours any more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from sidestep import errors
from sidestep.address import PAGE, Range
from sidestep.arch.x86_64 import signal_code
from sidestep.arch.x86_64.insn import Instruction, decode
from sidestep.arch.x86_64.signal_code import TABLE_SIZE, HookCode
from sidestep.errors import ProbeError
from sidestep.events.layout import JUMP_SIZE
from sidestep.target.base import Buffer, Change, Detour, Label, SignalPath
from sidestep.target.process import fronts
from sidestep.target.process.areas import CodeArena
from sidestep.target.process.copies import CopyTable, Guard
from sidestep.target.process.fronts import CODE_SIZE, layout_at
from sidestep.target.process.poke import TextChange, take_out
from sidestep.target.process.process import Process, Window
from sidestep.target.process.space import CodeSpace

Emit = Callable[[int, Sequence[Instruction], bytes], HookCode]


class SignalLayer:
    """Made with nothing leading to it, until `begin`."""

    def __init__(
        self, process: Process, space: CodeSpace, path: SignalPath, labels: tuple[Label, Label]
    ) -> None:
        self._process, self._space, self._near = process, space, path.near
        self.restorer = path.restorer.start
        address = space.make_apart(path.near, CODE_SIZE + TABLE_SIZE, PAGE).address
        layout = self.layout = layout_at(address)
        code = signal_code.emit_fronts(layout)
        assert len(code) <= CODE_SIZE
        process.memory.write(address, code)
        space.routines.append(Range(address, address + CODE_SIZE))
        self.guard = Guard(layout.table, self.restorer)
        self.table = CopyTable(process.memory, self.guard)

        def at_restorer(address: int, instructions: Sequence[Instruction], original: bytes) -> HookCode:
            return signal_code.emit_restorer(address, instructions, original, layout)

        def at_installer(address: int, instructions: Sequence[Instruction], original: bytes) -> HookCode:
            return signal_code.emit_installer(address, instructions, original, layout, self.restorer)

        self.restorer_hook = self._hook(path.restorer, labels[0], at_restorer)
        self._installer_hook = self._hook(path.installer, labels[1], at_installer)

    @property
    def hooks(self) -> tuple[Detour, Detour]:
        return self.restorer_hook, self._installer_hook

    @property
    def returning(self) -> Range:
        """A thread in here may be about to go on where only one of its registers says."""
        return self.restorer_hook.buffer.span

    def expect(self, detours: Collection[Detour]) -> None:
        """These are in the text already. Raises ProbeError TOO_MANY_PROBES."""
        if not all(self.table.promise(detour.buffer) for detour in detours):
            raise ProbeError(f"process {self._process.pid}", errors.TOO_MANY_PROBES)
        self.table.enter(detours)

    def begin(self, window: Window) -> None:
        """In one stop, first the hooks, then fronts before the handlers that are there: none is installed any
        more without one. Raises ProbeError, or TargetError (fronts.put_in), with nothing changed."""
        self.table.write()
        hooks = TextChange([Change((), hook) for hook in self.hooks], ())
        try:
            for refusal in hooks.make(window, self._space.routines, lambda detour: None).values():
                raise ProbeError(f"process {self._process.pid}", refusal.reason, refusal.detail)
            fronts.put_in(window, self.layout, self.restorer)
        except BaseException:
            take_out(window, self.hooks)
            raise

    def end(self, window: Window) -> None:
        """Take out the fronts, when no thread is in code of ours: until then one may fault there. The
        installer's hook goes behind them: should we be killed in between, no front is shown to the program.

        The restorer's hook went with the probes: handlers return into text that is as it was.
        """
        try:
            fronts.take_out(window, self.layout)
        finally:
            take_out(window, [self._installer_hook])

    def _hook(self, where: Range, label: Label, emit: Emit) -> Detour:
        original = self._process.memory.read(where.start, where.size)
        instructions = decode(original, where.start)
        made: list[HookCode] = []

        def place(_: CodeArena, address: int) -> bytes:
            made.append(emit(address, instructions, original))
            return made[-1].code

        address, code = self._space.place(self._near, place)
        self._process.memory.write(address, code)
        interior = tuple(instruction.ip for instruction in instructions[1:])
        buffer = Buffer(address, code, made[-1].boundaries)
        return Detour(where, interior, (where.end,), original[:JUMP_SIZE], buffer, (label,))
