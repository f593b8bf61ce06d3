"""Machine code that counts a hit.

Usually each thread has a block of counters of its own: found through the fs base (which the ABI puts at
fs:0), incremented without a lock. Where fs:0 cannot be trusted the process's block is incremented with one.

Thousands of probes are placed at once, so all that does not depend on the probe is made once a register pair.
"""

from __future__ import annotations

from functools import cache
from typing import Final, NamedTuple

from sidestep.arch.x86_64.frame import RED_ZONE, Emission
from sidestep.arch.x86_64.runtime import Runtime
from sidestep.arch.x86_64.shapes import (
    Piece,
    add,
    and_,
    at,
    cmp,
    fs,
    inc,
    lea,
    mov,
    pop,
    push,
    rip,
    shr,
    test,
)
from sidestep.events import layout

THREAD_REGISTERS: Final = 2
LOCKED_REGISTERS: Final = 1

_ANY_DISPLACEMENT: Final = 0x7654_3210  # stands for a counter's place in its block


class _Increment(NamedTuple):
    """`inc` of a counter in the block that a register points to, up to the counter's displacement."""

    plain: bytes
    locked: bytes


class _Search(NamedTuple):
    """The pieces between which the probe's own addresses and numbers stand."""

    skip_red_zone: bytes
    push: bytes
    pop: bytes
    restore_red_zone: bytes


def count_by_thread(
    emission: Emission, depth: int, runtime: Runtime, index: int, registers: tuple[str, str]
) -> None:
    """Increments counter `index` of the thread, with the stack pointer `depth` bytes below the program's.
    Clobbers both `registers` and the flags."""
    assembler = emission.assembler
    block, slot = registers
    hash_base, compare_key, load_block = _table_lookup(block, slot)
    unknown, known = emission.new_label(), emission.new_label()
    assembler.raw(hash_base)
    assembler.emit(add(slot, rip(runtime.thread_table_pointer)))
    assembler.raw(compare_key)
    assembler.jump_if("ne", unknown)
    assembler.raw(load_block)
    assembler.label(known)
    assembler.raw(_increment(block).plain + _displacement(index))
    search = _search(block, depth == 0)

    def find_block() -> None:
        assembler.label(unknown)
        assembler.raw(search.skip_red_zone + search.push + b"\x68" + _displacement(index))  # push $imm32
        assembler.call_to(runtime.thread_block)
        assembler.raw(search.pop + search.restore_red_zone)
        assembler.jump(known)

    emission.later(find_block)


def count_by_process(emission: Emission, depth: int, runtime: Runtime, index: int, block: str) -> None:
    """As `count_by_thread`, of the process, with a lock. Clobbers the register `block` and the flags."""
    assembler = emission.assembler
    unknown, known = emission.new_label(), emission.new_label()
    assembler.emit(mov(block, rip(runtime.process_page_pointer)))
    assembler.raw(_process_block(block))
    assembler.jump_if("e", unknown)
    assembler.label(known)
    assembler.raw(_increment(block).locked + _displacement(index))
    search = _search(block, depth == 0)

    def find_block() -> None:
        assembler.label(unknown)
        assembler.raw(search.skip_red_zone + search.push)
        assembler.call_to(runtime.process_block)
        assembler.raw(search.pop + search.restore_red_zone)
        assembler.jump(known)

    emission.later(find_block)


def low_half(register: str) -> str:
    """The 32-bit name of a general register."""
    return f"{register}d" if register[1].isdigit() else f"e{register[1:]}"


@cache
def _table_lookup(block: str, slot: str) -> tuple[bytes, bytes, bytes]:
    """`slot` = the hash of the fs base in `block`; their comparison; `block` = the block in the slot."""
    hash_base = _bytes(
        mov(block, fs(0)),
        mov(low_half(slot), low_half(block)),
        shr(low_half(slot), layout.THREAD_HASH_SHIFT),
        and_(low_half(slot), layout.THREAD_HASH_MASK),
    )
    return hash_base, _bytes(cmp(at(slot), block)), _bytes(mov(block, at(slot, 8)))


@cache
def _process_block(block: str) -> bytes:
    return _bytes(mov(block, at(block, layout.PROCESS_BLOCK_OFFSET)), test(block, block))


@cache
def _increment(block: str) -> _Increment:
    counter = at(block, _ANY_DISPLACEMENT)
    return _Increment(_bytes(inc(counter))[:-4], _bytes(inc(counter, lock=True))[:-4])


@cache
def _search(block: str, skips_red_zone: bool) -> _Search:
    down, up = lea("rsp", at("rsp", -RED_ZONE)), lea("rsp", at("rsp", RED_ZONE))
    return _Search(
        _bytes(down) if skips_red_zone else b"",
        _bytes(push(block)),
        _bytes(pop(block)),
        _bytes(up) if skips_red_zone else b"",
    )


def _displacement(index: int) -> bytes:
    """A counter's place in its block."""
    return (8 * index).to_bytes(4, "little")


def _bytes(*pieces: Piece) -> bytes:
    """Pieces without RIP-relative operands, one behind the other."""
    assert all(isinstance(piece, bytes) for piece in pieces)
    return b"".join(piece for piece in pieces if isinstance(piece, bytes))
