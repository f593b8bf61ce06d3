"""What native handlers have in the target: code, in the arenas of detour buffers, and memory for maps, in
shared areas."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sidestep.address import PAGE, Range
from sidestep.arch.x86_64.recording import Rings
from sidestep.arch.x86_64.reserve import reserve
from sidestep.arch.x86_64.runtime import Runtime
from sidestep.arch.x86_64.writer import Assembler
from sidestep.events import layout
from sidestep.target.process.areas import SharedArea, create_shared
from sidestep.target.process.process import Process
from sidestep.target.process.space import CodeSpace
from sidestep.target.process.turns import in_turn
from sidestep.uninterrupted import uninterrupted

SMALLEST_AREA = 1 << 20


class Natives:
    """Handlers' code and maps' memory of one session. Code stays until the session ends."""

    def __init__(self, process: Process, space: CodeSpace) -> None:
        self._process, self._space = process, space
        self.areas: list[SharedArea] = []
        self._used = 0  # bytes of the last area
        self._reserve: int | None = None

    @property
    def spans(self) -> list[Range]:
        return [area.span for area in self.areas]

    def allocate(self, count: int) -> int:
        """The address of `count` words of memory, all 0, that target and controller share."""
        size = count * layout.WORD
        if not self.areas or self._used + size > self.areas[-1].span.size:
            whole = max(SMALLEST_AREA, size + PAGE - 1 & -PAGE)
            mappings = [(0, whole, 0)]

            def make() -> None:
                area = in_turn(
                    lambda: self._process.in_window(lambda window: create_shared(window, whole, mappings))
                )
                self.areas.append(area)
                self._used = 0

            uninterrupted(make)
        address = self.areas[-1].address + self._used
        self._used += size
        return address

    def words(self, address: int, count: int) -> memoryview:
        """Words of that memory, as the controller has them mapped."""
        area = next(area for area in self.areas if address in area.span)
        start = address - area.address
        return memoryview(area.view)[start : start + count * layout.WORD].cast("Q")

    def place(self, near: Range, emit: Callable[[int], bytes]) -> int:
        """Code for an address that it is told; returns the address."""
        address, code = self._space.place(near, lambda _, address: emit(address))
        self._process.memory.write(address, code)
        self._space.routines.append(Range(address, address + len(code)))
        return address

    def reserve(self, near: Range, runtime: Runtime, rings: Rings, tid_offset: int | None) -> int:
        """The routine that finds a place in a ring."""
        if self._reserve is None:

            def emit(address: int) -> bytes:
                assembler = Assembler(address)
                reserve(assembler, runtime, rings, tid_offset)
                return assembler.finish()

            self._reserve = self.place(near, emit)
        return self._reserve

    def close(self) -> None:
        for area in self.areas:
            area.close()


def runtime_symbols(runtime: Runtime) -> Mapping[str, int]:
    """The addresses that handlers' code refers to by these names (compiler/lower.py)."""
    return {
        "scratch_block": runtime.counters(layout.SCRATCH_BLOCK),
        "shared_block": runtime.counters(layout.SHARED_BLOCK),
        "process_page": runtime.process_page + layout.PROCESS_BLOCK_OFFSET,
        "read_word": runtime.read_word,
        "read_memory": runtime.read_memory,
        "write_word": runtime.write_word,
        "thread_name": runtime.thread_name,
        "walk_stack": runtime.walk_stack,
    }
