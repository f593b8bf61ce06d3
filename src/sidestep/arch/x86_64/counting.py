"""Machine code that counts a hit.

Usually each thread has a block of counters of its own: found through the fs base (which the ABI puts at
fs:0), incremented without a lock. Where fs:0 cannot be trusted the process's block is incremented with one.
"""

from __future__ import annotations

from typing import Final

from sidestep.arch.x86_64.frame import RED_ZONE, Emission, Frame
from sidestep.arch.x86_64.runtime import Runtime
from sidestep.arch.x86_64.shapes import add, and_, at, cmp, fs, inc, lea, mov, pop, push, rip, shr, test
from sidestep.events import layout

THREAD_REGISTERS: Final = 2
LOCKED_REGISTERS: Final = 1


def count_by_thread(
    emission: Emission, frame: Frame, runtime: Runtime, index: int, registers: tuple[str, str]
) -> None:
    """Increments counter `index` of the thread. Clobbers both `registers` and the flags."""
    assembler, emit = emission.assembler, emission.assembler.emit
    block, slot = registers
    unknown, known = emission.new_label(), emission.new_label()
    emit(mov(block, fs(0)))
    emit(mov(low_half(slot), low_half(block)))
    emit(shr(low_half(slot), layout.THREAD_HASH_SHIFT))
    emit(and_(low_half(slot), layout.THREAD_HASH_MASK))
    emit(add(slot, rip(runtime.thread_table_pointer)))
    emit(cmp(at(slot), block))
    assembler.jump_if("ne", unknown)
    emit(mov(block, at(slot, 8)))
    assembler.label(known)
    emit(inc(at(block, 8 * index)))
    skips_red_zone = frame.depth == 0

    def find_block() -> None:
        assembler.label(unknown)
        if skips_red_zone:
            emit(lea("rsp", at("rsp", -RED_ZONE)))
        emit(push(block))
        emit(push(8 * index))
        assembler.call_to(runtime.thread_block)
        emit(pop(block))
        if skips_red_zone:
            emit(lea("rsp", at("rsp", RED_ZONE)))
        assembler.jump(known)

    emission.later(find_block)


def count_by_process(emission: Emission, frame: Frame, runtime: Runtime, index: int, block: str) -> None:
    """Increments counter `index` of the process, with a lock. Clobbers the register `block` and the flags."""
    assembler, emit = emission.assembler, emission.assembler.emit
    unknown, known = emission.new_label(), emission.new_label()
    emit(mov(block, rip(runtime.process_page_pointer)))
    emit(mov(block, at(block, layout.PROCESS_BLOCK_OFFSET)))
    emit(test(block, block))
    assembler.jump_if("e", unknown)
    assembler.label(known)
    emit(inc(at(block, 8 * index), lock=True))
    skips_red_zone = frame.depth == 0

    def find_block() -> None:
        assembler.label(unknown)
        if skips_red_zone:
            emit(lea("rsp", at("rsp", -RED_ZONE)))
        emit(push(block))
        assembler.call_to(runtime.process_block)
        emit(pop(block))
        if skips_red_zone:
            emit(lea("rsp", at("rsp", RED_ZONE)))
        assembler.jump(known)

    emission.later(find_block)


def low_half(register: str) -> str:
    """The 32-bit name of a general register."""
    return f"{register}d" if register[1].isdigit() else f"e{register[1:]}"
