"""Instructions out of the libraries of this machine, adapted so that they can run in the harness."""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from differential.execution import Layout
from sidestep.arch.x86_64 import insn

_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_PLACES, _LENGTH = 200, 4096  # taken from each file: so many times so many bytes


class Text(NamedTuple):
    path: Path
    address: int
    code: bytes


class Found(NamedTuple):
    """One instruction where it was found."""

    instruction: insn.Instruction
    code: bytes


def libraries() -> list[Path]:
    """libc, libm, libcrypto and the Python that runs this, as far as they are there."""
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line}
    folders = {Path(path).parent for path in mapped if Path(path).name.startswith("libc.so")}
    names = ("libc.so.6", "libm.so.6", "libcrypto.so.3")
    found = [folder / name for folder in folders for name in names if (folder / name).exists()]
    pythons = [Path(path) for path in mapped if Path(path).name.startswith("libpython")]
    return [*found, *(pythons or [Path(sys.executable).resolve()])]


def executable_parts(path: Path) -> list[Text]:
    """The executable segments of an ELF file."""
    data = path.read_bytes()
    (table,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    parts = []
    for index in range(count):
        kind, flags, offset, address, _, length, _, _ = _PROGRAM_HEADER.unpack_from(
            data, table + index * size
        )
        if kind == 1 and flags & 1:
            parts.append(Text(path, address, data[offset : offset + length]))
    return parts


def streams(source: random.Random) -> list[list[Found]]:
    """Runs of neighbouring instructions from random places of all libraries."""
    found = []
    for path in libraries():
        parts = executable_parts(path)
        for _ in range(_PLACES):
            text = source.choices(parts, [len(part.code) for part in parts])[0]
            start = source.randrange(max(1, len(text.code) - _LENGTH))
            code, address = text.code[start : start + _LENGTH], text.address + start
            decoded = insn.decode(code, address)
            if len(decoded) > 16:
                found.append([Found(i, code[i.ip - address : i.next_ip - address]) for i in decoded])
    return found


def by_kind(streams: Sequence[list[Found]], limit: int, source: random.Random) -> list[Found]:
    """Up to `limit` instructions of each kind that the streams hold, chosen at random."""
    places: dict[int, list[Found]] = {}
    for stream in streams:
        for found in stream:
            places.setdefault(found.instruction.code, []).append(found)
    chosen: list[Found] = []
    for kind in sorted(places):
        chosen += source.sample(places[kind], min(limit, len(places[kind])))
    return chosen


# Their outcome depends on more than their operands, or would take the harness along.
_UNFIT = frozenset(
    """
    syscall sysenter wrfsbase wrgsbase wrpkru xrstor xrstor64 xsave xsave64 xsavec xsavec64 xsaveopt
    xsaveopt64 fxsave
    fxsave64 fxrstor fxrstor64 fnstenv fnsave fstenv fsave rdtsc rdtscp rdrand rdseed rdpmc rdpid cpuid
    xgetbv umwait tpause umonitor mwaitx monitorx popf popfq popfd iret iretd iretq retf enqcmd senduipi uiret
    stui clui testui ldtilecfg sttilecfg tilerelease tileloadd tileloaddt1 tilestored tilezero sgdt sidt sldt
    str smsw lfs lgs lss vmcall vmmcall vmfunc xbegin xabort xend xtest enclu getsec swapgs rdsspd rdsspq
    """.split()  # noqa: SIM905
)


def is_fit(found: Found) -> bool:
    """It can run with random operands and gives the same outcome each time.

    Locked instructions need an aligned operand: a split lock is slowed down to milliseconds by the system.
    """
    instruction = found.instruction
    if insn.name(instruction) in _UNFIT or insn.is_far(instruction):
        return False
    if instruction.memory_segment in (insn.register("fs"), insn.register("gs")):
        return False
    if instruction.op0_register in (insn.register(name) for name in ("fs", "gs", "ss", "ds", "es")):
        return False
    if instruction.has_lock_prefix or insn.name(instruction) == "xchg":
        return insn.memory_base(instruction) in ("rip", "none")
    return True


def adapt(parts: Sequence[Found], address: int, layout: Layout, source: random.Random) -> bytes:
    """The bytes of the instructions one after the other at `address`.

    RIP-relative operands lead into the data. Branches lead into int3; those from one of the parts to
    the start of another one still do.
    """
    starts = {}
    position = address
    for part in parts:
        starts[part.instruction.ip] = position
        position += len(part.code)
    return b"".join(_adapted(part, starts, layout, source) for part in parts)


def _adapted(part: Found, starts: dict[int, int], layout: Layout, source: random.Random) -> bytes:
    instruction, code = part
    end = starts[instruction.ip] + len(code)
    if insn.rip_target(instruction) is not None:
        distance = len(insn.encode(instruction, instruction.ip)) - insn.displacement_offset()
        displacement = (layout.data & ~63) + 64 * source.randrange(-16, 16) - end
        if source.random() < 0.1 and not instruction.has_lock_prefix:
            displacement += source.randrange(8)
        place = len(code) - distance
        return code[:place] + struct.pack("<i", displacement) + code[place + 4 :]
    target = insn.direct_branch_target(instruction)
    if target is None:
        return code
    wide = instruction.is_jcc_near or instruction.is_jmp_near or instruction.is_call_near
    if target in starts:
        displacement = starts[target] - end
    elif wide:
        displacement = layout.original + source.randrange(0x8000, 0x10000) - end
    else:
        displacement = source.choice((-1, 1)) * source.randrange(100, 126)
    return (
        code[:-4] + struct.pack("<i", displacement) if wide else code[:-1] + struct.pack("<b", displacement)
    )


def without_unfit(parts: Iterable[Found]) -> list[Found]:
    """The parts before the first one that is not fit."""
    kept = []
    for part in parts:
        if not is_fit(part):
            break
        kept.append(part)
    return kept
