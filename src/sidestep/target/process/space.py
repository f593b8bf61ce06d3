"""Room for detour buffers: code arenas near the modules, and which of their bytes are free."""

from __future__ import annotations

from collections.abc import Callable

from sidestep import errors
from sidestep.address import PAGE, Range
from sidestep.errors import TargetError
from sidestep.events import layout
from sidestep.target.process.areas import CodeArena, create_arena
from sidestep.target.process.free import FreePlaces
from sidestep.target.process.process import Process
from sidestep.target.process.turns import in_turn
from sidestep.uninterrupted import uninterrupted

SMALLEST_ARENA = 64 << 10
ALIGNMENT = 16
Emit = Callable[[CodeArena, int], bytes]


class CodeSpace:
    """The code arenas of one session. `start_arena` emits what each of them begins with."""

    def __init__(
        self, process: Process, start_arena: Emit, announce: Callable[[list[CodeArena]], None]
    ) -> None:
        self._process, self._start_arena, self._announce = process, start_arena, announce
        self.arenas: list[CodeArena] = []
        self.routines: list[Range] = []  # what each of them begins with
        self._free: dict[int, FreePlaces] = {}  # by arena address

    def reserve(self, near: Range, size: int, room: int = 0) -> CodeArena:
        """An arena within reach of `near` with `size` bytes behind those in use; made, with `room`, if there
        is none."""
        for arena in self.arenas:
            if arena.reaches(near) and arena.unused >= size:
                return arena
        wanted = max(SMALLEST_ARENA, max(size, room) + PAGE + PAGE - 1 & ~(PAGE - 1))
        return uninterrupted(lambda: self._make(near, wanted))

    def make_apart(self, near: Range, code_size: int, data_size: int) -> CodeArena:
        """An arena without buffers, and with private memory that forked children inherit."""
        self.reserve(near, 2 * PAGE)  # the first one has the process page
        arena = uninterrupted(lambda: self._map(near, code_size, data_size, inherited=True))
        arena.used = code_size
        return arena

    def _make(self, near: Range, wanted: int) -> CodeArena:
        data_size = layout.PROCESS_PAGE_SIZE if not self.arenas else 0
        arena = self._map(near, wanted, data_size, inherited=False)
        start = self._start_arena(arena, arena.address)
        self._process.memory.write(arena.address, start)
        self.routines.append(Range(arena.address, arena.address + len(start)))
        arena.used = self._rounded(len(start))
        return arena

    def _map(self, near: Range, code_size: int, data_size: int, *, inherited: bool) -> CodeArena:
        if len(self.arenas) == layout.ARENA_CAPACITY:
            raise TargetError(
                f"process {self._process.pid}", errors.TOO_MANY_PROBES, "no room for another code arena"
            )
        known = list(self.arenas)

        def announce(arena: CodeArena) -> None:
            self.arenas = [*known, arena]
            self._announce(self.arenas)

        try:
            arena = in_turn(
                lambda: self._process.in_window(
                    lambda window: create_arena(
                        window, near, code_size, data_size, announce, inherited=inherited
                    )
                )
            )
        except BaseException:
            self.arenas = known
            self._announce(self.arenas)
            raise
        self._free[arena.address] = FreePlaces()
        return arena

    def place(self, near: Range, emit: Emit, room: int = 0) -> tuple[int, bytes]:
        """Emit code for where there is room; returns its address and bytes (not written yet).

        `room` is how much the caller will place in all, if a new arena has to be made.
        """
        for arena in self.arenas:
            free = self._free[arena.address]
            if arena.reaches(near) and (largest := free.largest) is not None:
                code = emit(arena, largest.start)
                if len(code) <= largest.size:
                    free.take(self._rounded(len(code)))
                    return largest.start, code
        arena = self.reserve(near, 2 * PAGE, room)
        code = emit(arena, arena.address + arena.used)
        if len(code) > arena.unused:
            arena = self.reserve(near, len(code) + PAGE)
            code = emit(arena, arena.address + arena.used)
        address = arena.address + arena.used
        arena.used += self._rounded(len(code))
        return address, code

    def release(self, span: Range) -> None:
        """Make a buffer's bytes free. The caller has proved that nothing runs there or will return there."""
        for arena in self.arenas:
            if arena.address <= span.start < arena.address + arena.code_size:
                self._free[arena.address].put(Range(span.start, span.start + self._rounded(span.size)))

    @staticmethod
    def _rounded(size: int) -> int:
        return size + ALIGNMENT - 1 & ~(ALIGNMENT - 1)

    @property
    def spans(self) -> list[Range]:
        return [Range(arena.address, arena.address + arena.size) for arena in self.arenas]

    @property
    def code_spans(self) -> list[Range]:
        return [Range(arena.address, arena.address + arena.code_size) for arena in self.arenas]
