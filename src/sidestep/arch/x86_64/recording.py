"""Machine code that records an event: filters, a place in a ring, the fields, the commit.

Nothing is reserved before the filters have passed. The place is reserved by compare-and-exchange on a ring's
head, a bounded number of times; then come the time (so that a record is never older than its reservation),
the thread, the fields, and last the byte that turns PENDING_MAGIC into RECORD_MAGIC.

A thread with a counter block of its own among the first has a ring of its own, too. Nobody else writes there,
so the exchange needs no lock: only a signal handler of the same thread can come in between, and to that a
single instruction is indivisible. (A lock costs as much as all the rest but the rdtsc.) Other threads use the
ring of the CPU that they are on, with a lock; which of them is only a matter of spreading writers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from sidestep.arch.x86_64.condition import ConditionCompiler, KeptValues
from sidestep.arch.x86_64.fetch import RECORD_POINTER, Fetcher, Resolve
from sidestep.arch.x86_64.frame import Emission, Frame, Label
from sidestep.arch.x86_64.runtime import Runtime
from sidestep.arch.x86_64.shapes import (
    RDTSC,
    SYSCALL,
    Memory,
    add,
    and_,
    at,
    cmov,
    cmp,
    cmpxchg,
    dec,
    fs,
    inc,
    lea,
    mov,
    or_,
    rip,
    shl,
    shr,
    sub,
    xor,
)
from sidestep.arch.x86_64.writer import Assembler
from sidestep.events import layout
from sidestep.events.record import COMM_SIZE, EventProgram, Field
from sidestep.spec import Immediate, StackSlot

SYS_GETTID: Final = 186
BLOCK_SHIFT: Final = layout.COUNTER_BLOCK_SIZE.bit_length() - 1
RESERVATION_TRIES: Final = 32
CPU_MASK: Final = 0xFFF
_CPU_SEGMENT: Final = 0x7B  # its limit holds node << 12 | cpu, for user space to read
_RDPID_RCX: Final = b"\xf3\x0f\xc7\xf9"
_LSL_ECX_ECX: Final = b"\x0f\x03\xc9"
_MULTIPLY_RCX: Final = b"\x48\x69\xc9"  # imul $imm32,%rcx,%rcx


CpuNumber: TypeAlias = Literal["rdpid", "lsl"]
"""By which instruction the processor tells the number of the CPU."""


@dataclass(frozen=True, slots=True)
class Rings:
    """The rings as the target has them mapped: `count` of CPUs, behind them `threads` of single threads.

    `cpu_number` is how the processor tells the CPU. `cpu_offset` is where the kernel keeps it, from the
    fs base (cpu_id of the thread's rseq area), if that was verified: it is quicker.
    """

    address: int
    count: int
    size: int
    cpu_number: CpuNumber = "lsl"
    threads: int = 0
    cpu_offset: int | None = None


def ask_tid(assembler: Assembler) -> None:
    """eax = tid; clobbers rcx and r11."""
    assembler.emit(mov("eax", SYS_GETTID))
    assembler.raw(SYSCALL)


def jump_unless_known(
    assembler: Assembler, runtime: Runtime, block: Memory | str, unknown: Label | str
) -> None:
    """Goes to `unknown` if the thread has no counter block of its own: then nothing is known of what is at
    its fs base. `block` holds the address of the block that it counted in. Clobbers rax."""
    assembler.emit(mov("rax", runtime.counters(layout.SCRATCH_BLOCK)))
    assembler.emit(cmp("rax", block))
    assembler.jump_if("e", unknown)


def load_tid(emission: Emission, runtime: Runtime, tid_offset: int | None, block: Memory | None) -> None:
    """eax = tid, from the thread's data where it is known to be; clobbers rcx and r11. For `block` see
    `jump_unless_known`."""
    assembler = emission.assembler
    if tid_offset is None or block is None:
        ask_tid(assembler)
        return
    unknown, loaded = emission.new_label(), emission.new_label()
    jump_unless_known(assembler, runtime, block, unknown)
    assembler.emit(mov("eax", fs(tid_offset)))
    assembler.label(loaded)

    def ask() -> None:
        assembler.label(unknown)
        ask_tid(assembler)
        assembler.jump(loaded)

    emission.later(ask)


def load_cpu(assembler: Assembler, cpu_number: CpuNumber) -> None:
    """ecx = number of the CPU, with other things above its lowest 12 bits."""
    if cpu_number == "rdpid":
        assembler.raw(_RDPID_RCX)
    else:
        assembler.emit(mov("ecx", _CPU_SEGMENT))
        assembler.raw(_LSL_ECX_ECX)


def point_to_ring(assembler: Assembler, rings: Rings, first: int) -> None:
    """rcx = ring number `first` + rcx; clobbers rax."""
    stride = layout.ring_stride(rings.size)
    assembler.raw(_MULTIPLY_RCX + stride.to_bytes(4, "little"))
    assembler.emit(mov("rax", rings.address + first * stride))
    assembler.emit(add("rcx", "rax"))


class EventCompiler:
    """Emits the code of one event at one probepoint.

    `tid_offset` is where the tid is from the fs base, where that is known. `block_depth`: the address of the
    counter block that the hit was counted in waits on the stack so far below the program's stack pointer;
    None where that cannot be a thread's.
    """

    def __init__(
        self,
        emission: Emission,
        frame: Frame,
        runtime: Runtime,
        program: EventProgram,
        rings: Rings | None,
        tid_offset: int | None,
        resolve: Resolve,
        block_depth: int | None,
    ) -> None:
        self._emission, self._assembler, self._frame = emission, emission.assembler, frame
        self._runtime, self._program, self._rings = runtime, program, rings
        self._tid_offset, self._block_depth = tid_offset, block_depth
        self._format = program.format
        self._fetcher = Fetcher(emission, frame, runtime, program, resolve)
        self._kept = KeptValues(emission, frame, self._fetcher, program)
        self._rejected = emission.new_label()

    def enter(self) -> None:
        """Goes to `leave` unless the hit passes the filters."""
        self._kept.enter()
        program = self._program
        if program.tids is not None:
            self._filter_tid(program.tids)
        if program.comms:
            self._filter_comm(program.comms)
        if program.condition is not None:
            compiler = ConditionCompiler(
                self._emission, self._frame, self._fetcher, self._kept, program, self._rejected
            )
            compiler.jump_unless(program.condition, self._rejected)

    @property
    def _block(self) -> Memory | None:
        """Where the address of the counter block is."""
        return None if self._block_depth is None else at("rsp", self._frame.depth - self._block_depth)

    def record(self) -> None:
        """Reserves, fills and commits a record; a full ring only adds to the lost ones."""
        rings, block = self._rings, self._block
        if rings is None:
            raise ValueError("an event needs rings")
        if block is None or not rings.threads:
            self._choose_cpu_ring(rings)
            self._reserve(rings, lock=True)
        else:
            self._reserve_by_thread(rings, block)
        self._fill_header(rings)
        for number, field in enumerate(self._format.fields):
            self._fill_field(number, field)
        if self._format.stack_depth:
            self._fill_stack()
        self._assembler.emit(mov(at(RECORD_POINTER), layout.RECORD_MAGIC & 0xFF, 8))

    def leave(self) -> None:
        self._assembler.label(self._rejected)
        self._kept.leave()

    def _filter_tid(self, tids: frozenset[int]) -> None:
        passed = self._emission.new_label()
        load_tid(self._emission, self._runtime, self._tid_offset, self._block)
        for tid in sorted(tids):
            self._assembler.emit(cmp("eax", tid))
            self._assembler.jump_if("e", passed)
        self._assembler.jump(self._rejected)
        self._assembler.label(passed)

    def _filter_comm(self, comms: tuple[bytes, ...]) -> None:
        passed, emit = self._emission.new_label(), self._assembler.emit
        self._frame.reserve(COMM_SIZE)
        emit(mov("rcx", "rsp"))
        self._assembler.call_to(self._runtime.thread_name)
        self._frame.pop("rdx")
        self._frame.pop("r11")
        for comm in comms:
            padded = comm[: COMM_SIZE - 1].ljust(COMM_SIZE, b"\0")
            another = self._emission.new_label()
            emit(mov("rax", int.from_bytes(padded[:8], "little")))
            emit(cmp("rdx", "rax"))
            self._assembler.jump_if("ne", another)
            emit(mov("rax", int.from_bytes(padded[8:], "little")))
            emit(cmp("r11", "rax"))
            self._assembler.jump_if("e", passed)
            self._assembler.label(another)
        self._assembler.jump(self._rejected)
        self._assembler.label(passed)

    def _choose_cpu_ring(self, rings: Rings) -> None:
        """rcx = the ring of this CPU; the first ring for a CPU that was not thought possible."""
        emit = self._assembler.emit
        load_cpu(self._assembler, rings.cpu_number)
        emit(xor("edx", "edx"))
        emit(and_("ecx", CPU_MASK))
        emit(cmp("ecx", rings.count))
        emit(cmov("ae", "ecx", "edx"))
        point_to_ring(self._assembler, rings, 0)

    def _reserve_by_thread(self, rings: Rings, block: Memory) -> None:
        """Reserves in the ring that goes with the thread's block; where there is none, in the CPU's."""
        assembler, emit = self._assembler, self._assembler.emit
        shared, reserved = self._emission.new_label(), self._emission.new_label()
        emit(mov("rcx", block))
        emit(mov("rax", self._runtime.counters(layout.FIRST_FREE_BLOCK)))
        emit(sub("rcx", "rax"))
        emit(shr("rcx", BLOCK_SHIFT))
        emit(cmp("rcx", rings.threads))
        assembler.jump_if("ae", shared)
        point_to_ring(self._assembler, rings, rings.count)
        self._reserve(rings, lock=False)
        assembler.label(reserved)

        def seldom() -> None:
            assembler.label(shared)
            self._choose_cpu_ring(rings)
            self._reserve(rings, lock=True)
            assembler.jump(reserved)

        self._emission.later(seldom)

    def _reserve(self, rings: Rings, *, lock: bool) -> None:
        """The record pointer = a span of zeros in the ring at rcx. Or counts a lost event and leaves."""
        assembler, emit = self._assembler, self._assembler.emit
        retry, again, full = (self._emission.new_label() for _ in range(3))
        emit(mov("r11d", RESERVATION_TRIES))
        emit(mov("rax", at("rcx", layout.RING_HEAD_OFFSET)))
        assembler.label(retry)
        emit(lea("rdx", at("rax", self._format.size)))
        emit(mov(RECORD_POINTER, "rdx"))
        emit(sub(RECORD_POINTER, at("rcx", layout.RING_TAIL_OFFSET)))
        emit(cmp(RECORD_POINTER, rings.size))
        assembler.jump_if("a", full)
        emit(cmpxchg(at("rcx", layout.RING_HEAD_OFFSET), "rdx", lock=lock))
        assembler.jump_if("ne", again)
        emit(and_("eax", rings.size - 1))
        emit(lea(RECORD_POINTER, at("rcx", layout.RING_CONTROL_SIZE, "rax")))

        def seldom() -> None:
            assembler.label(again)
            emit(dec("r11d"))
            assembler.jump_if("ne", retry)
            assembler.label(full)
            emit(mov("rax", self._runtime.data + layout.lost_offset(self._program.index)))
            emit(inc(at("rax"), lock=True))
            assembler.jump(self._rejected)

        self._emission.later(seldom)

    def _fill_header(self, rings: Rings) -> None:
        emit = self._assembler.emit
        emit(mov("rax", self._format.header_word(self._program.index, layout.PENDING_MAGIC)))
        emit(mov(at(RECORD_POINTER), "rax"))
        self._assembler.raw(RDTSC)
        emit(shl("rdx", 32))
        emit(or_("rax", "rdx"))
        emit(mov(at(RECORD_POINTER, 8), "rax"))
        self._load_tid_and_cpu(rings)
        emit(mov(at(RECORD_POINTER, 16), "eax"))
        emit(shl("ecx", layout.RECORD_CPU_SHIFT))
        emit(mov("rax", rip(self._runtime.process_page_pointer)))
        emit(or_("ecx", at("rax", layout.PROCESS_PID_OFFSET)))
        emit(mov(at(RECORD_POINTER, 20), "ecx"))

    def _load_tid_and_cpu(self, rings: Rings) -> None:
        """eax = tid, ecx = number of the CPU, with other things above its lowest bits; clobbers r11."""
        block, assembler = self._block, self._assembler
        if block is None or rings.cpu_offset is None:
            load_tid(self._emission, self._runtime, self._tid_offset, block)
            load_cpu(assembler, rings.cpu_number)
            return
        unknown, loaded = self._emission.new_label(), self._emission.new_label()
        jump_unless_known(assembler, self._runtime, block, unknown)
        if self._tid_offset is None:
            ask_tid(assembler)
        else:
            assembler.emit(mov("eax", fs(self._tid_offset)))
        assembler.emit(mov("ecx", fs(rings.cpu_offset)))
        assembler.label(loaded)

        def ask() -> None:
            assembler.label(unknown)
            ask_tid(assembler)
            load_cpu(assembler, rings.cpu_number)
            assembler.jump(loaded)

        self._emission.later(ask)

    def _fill_field(self, number: int, field: Field) -> None:
        emit, place = self._assembler.emit, at(RECORD_POINTER, field.offset)
        if field.is_comm:
            emit(lea("rcx", place))
            self._assembler.call_to(self._runtime.thread_name)
            return
        filled, fault = self._emission.new_label(), self._emission.new_label()
        if field.fault_bit is not None:
            self._note_fault_later(field.fault_bit, fault, filled)
        if field.is_string:
            self._fetcher.address(field.fetch, lambda: fault)
            emit(lea("rcx", at(RECORD_POINTER, field.offset + 8)))
            emit(mov("edx", self._format.string_limit + 1))
            self._assembler.call_to(self._runtime.read_memory)
            emit(mov(place, "rax"))
        elif field.is_array:
            self._fetcher.address(field.fetch, lambda: fault)
            emit(lea("rcx", place))
            emit(mov("edx", field.type.element_size * (field.type.count or 0)))
            self._assembler.call_to(self._runtime.read_memory)
            emit(cmp("rax", "rdx"))
            self._assembler.jump_if("ne", fault)
        else:
            self._fill_number(number, field, fault)
        self._assembler.label(filled)

    def _fill_number(self, number: int, field: Field, fault: Label) -> None:
        emit, place = self._assembler.emit, at(RECORD_POINTER, field.offset)
        register = self._fetcher.untouched_register(field.fetch)
        match field.fetch:
            case _ if register is not None:
                emit(mov(place, register))
            case Immediate(value=value) if -(1 << 31) <= value < 1 << 31:
                emit(mov(place, value))
            case _:
                self._kept.word(number, fault)
                emit(mov(place, "rax"))

    def _note_fault_later(self, bit: int, fault: Label, filled: Label) -> None:
        def note() -> None:
            self._assembler.label(fault)
            place = at(RECORD_POINTER, layout.RECORD_HEADER_SIZE + bit // 8)
            self._assembler.emit(or_(place, 1 << bit % 8, 8))
            self._assembler.jump(filled)

        self._emission.later(note)

    def _fill_stack(self) -> None:
        """The probepoint, at a function's entry the return address, then what the frame pointers lead to."""
        emit, program = self._assembler.emit, self._program
        offset, left = self._format.stack_offset, self._format.stack_depth
        ended = self._emission.new_label()
        emit(mov("rax", program.address))
        emit(mov(at(RECORD_POINTER, offset), "rax"))
        offset, left = offset + 8, left - 1
        if program.at_entry and left:
            self._fetcher.word(StackSlot(0), 8, lambda: ended)
            emit(mov(at(RECORD_POINTER, offset), "rax"))
            offset, left = offset + 8, left - 1
        if left:
            self._fetcher.register("rax", "rbp")
            emit(lea("rcx", at(RECORD_POINTER, offset)))
            emit(mov("edx", left))
            self._assembler.call_to(self._runtime.walk_stack)
        self._assembler.label(ended)
