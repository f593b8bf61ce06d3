"""What reads bytes of a target, one entry each: valid inputs, and a function that uses all that it reads.

`use` returns whether the input was accepted. No error leaves it but those that the parser declares; what the
parser answers keeps its promises.
"""

from __future__ import annotations

import io
import json
import mmap
import struct
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fuzz import elf
from fuzz.mutation import Seed
from sidestep.address import Range
from sidestep.events import layout
from sidestep.events.clock import Clock
from sidestep.events.decode import EventDecoder
from sidestep.events.reader import EventReader
from sidestep.events.record import EventProgram
from sidestep.events.sinks import JsonSink, TextSink
from sidestep.kprobes.listing import line
from sidestep.maps import parse_maps
from sidestep.spec import parse
from sidestep.symbols.demangle import demangle, readable
from sidestep.symbols.mapped import find_images
from sidestep.symbols.printable import printable
from sidestep.target.process import remains, stacks
from sidestep.target.process.calls import INJECTED
from sidestep.target.process.filters import answers, decode

Use = Callable[[bytes], bool]


@dataclass(frozen=True, slots=True)
class Parser:
    """`seeds(FOLDER)` makes the valid inputs; `moves` says that lengths may change."""

    name: str
    seeds: Callable[[Path], Sequence[Seed]]
    use: Use
    moves: bool = False


def _elf(name: str, sections: tuple[str, ...], use: Use = elf.use) -> Parser:
    def seeds(folder: Path) -> Sequence[Seed]:
        return [elf.seed(elf.library(folder), sections), elf.seed(elf.program(folder), sections)]

    return Parser(name, seeds, use)


def _packed(name: str, make: Callable[[Path], bytes], section: str) -> Parser:
    return Parser(name, lambda folder: [elf.seed(make(folder), (section,))], elf.use)


def _inside(make: Callable[[Path], bytes]) -> Callable[[Path], Sequence[Seed]]:
    def seeds(folder: Path) -> Sequence[Seed]:
        elf.OUTER[:] = [elf.program(folder)]
        data = make(folder)
        return (
            [elf.seed(data, elf.SYMBOLS), elf.seed(data, ())]
            if data[:4] == b"\x7fELF"
            else [Seed.whole(data)]
        )

    return seeds


DIRECTIONS = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")


def is_harmless(text: str) -> bool:
    """Whether a terminal only shows it: no controls, no line breaks, no change of direction."""
    return not any(
        unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")
        or unicodedata.bidirectional(character) in DIRECTIONS
        or character in "\u061c\u200e\u200f"
        for character in text
    )


# /proc/PID/maps

MAPS = b"""00400000-00401000 r--p 00000000 fe:00 260689                             /usr/bin/a program
00401000-00b71000 r-xp 00001000 fe:00 260689                             /usr/bin/a program
00c00000-02400000 r-xp 00000000 00:00 0 \n02400000-025fe000 r-xp 02000000 fe:00 7  /tmp/new\\012line (deleted)
7f7bdf164000-7f7bdf2ba000 rw-s 00026000 00:01 339380                     /memfd:sidestep:1:2 (deleted)
7ffc1a1f5000-7ffc1a216000 rw-p 00000000 00:00 0                          [stack]
7ffc1a3a8000-7ffc1a3aa000 r-xp 00000000 00:00 0                          [vdso]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
"""


def use_maps(data: bytes) -> bool:
    mappings = parse_maps(data)
    for mapping in mappings:
        assert mapping.start >= 0
        mapping.path.encode("utf-8", "surrogateescape")
    images = find_images(0, mappings, lambda address, size: b"")
    return len(mappings) == 8 and not list(images)


# What a session left in the target

SESSION_ADDRESS = 0x7F0000000000


def session(folder: Path) -> Sequence[Seed]:
    shared = bytearray(layout.probe_offset(8))
    arena = layout.Arena(SESSION_ADDRESS - (1 << 20), 1 << 16)
    layout.Header(1, 2, 3, SESSION_ADDRESS, arenas=(arena,), ring_count=4, ring_size=1 << 16).write(shared)
    for index in range(8):
        site = SESSION_ADDRESS - (1 << 21) + 64 * index
        buffer = arena.start + 64 * index
        jump = b"\xe9" + struct.pack("<i", buffer - site - 5)
        moves = ((site, buffer), (site + 5, buffer + 20))
        layout.ProbeRecord(
            site, site, buffer, layout.STATE_ARMED, bytes(5), jump, 0, f"libc:f{index}+0x0", moves
        ).write(shared, index)
    return [Seed(bytes(shared), (range(layout.HEADER_SIZE), range(layout.probe_offset(0), len(shared))))]


def use_session(data: bytes) -> bool:
    data = data.ljust(layout.probe_offset(8), b"\0")
    try:
        header = layout.Header.read(data[: layout.HEADER_SIZE])
    except layout.LayoutError:
        return False
    arenas = [Range(arena.start, arena.start + arena.size) for arena in header.arenas]
    for index in range(8):
        record = layout.ProbeRecord.read(data, index)
        if record is not None:
            remains.is_into(record, arenas)
            module, _, symbol = record.name.partition(":")
            assert is_harmless(line(record.address, "k", symbol, module))
    return True


# Rings

RING_SIZE, RINGS = layout.SMALLEST_RING_SIZE, 2
PROGRAM = EventProgram(
    4,
    "event",
    "f+0x0",
    parse("f n=$arg1:s32 s=$arg2:string c=$comm a=+0($arg1):u16[3] y=$arg1:symbol").arguments,
    stack_depth=3,
    string_limit=32,
)


def rings(folder: Path) -> Sequence[Seed]:
    """The control words of two rings and the first 2 KiB of each: 16 records with every kind of field."""
    shape = PROGRAM.format
    record = bytearray(shape.size)
    struct.pack_into("<QQII", record, 0, shape.header_word(PROGRAM.index), 5, 6, 7)
    record[24:] = bytes(range(1, 255))[: shape.size - 24].ljust(shape.size - 24, b"x")
    content = bytes(record) * (2048 // shape.size)
    control = struct.pack("<2Q", len(content), 0)
    return [Seed.whole((control + content) * RINGS)]


_MEMORY = mmap.mmap(-1, layout.file_size(RINGS, RING_SIZE))


class _Ticks:
    """Time by calls: a tick is a millisecond."""

    def __init__(self) -> None:
        self.now = 1000

    def __call__(self) -> int:
        self.now += 1
        return self.now


def use_rings(data: bytes) -> bool:
    shared = memoryview(_MEMORY)
    shared[layout.RINGS_OFFSET :] = bytes(len(shared) - layout.RINGS_OFFSET)
    part = len(data) // RINGS
    for number in range(RINGS):
        mine = data[number * part : (number + 1) * part]
        start = layout.ring_offset(number, RING_SIZE)
        shared[start : start + 8], shared[start + 128 : start + 136] = mine[:8], mine[8:16]
        content = start + layout.RING_CONTROL_SIZE
        shared[content : content + len(mine) - 16] = mine[16:]
    ticks = _Ticks()
    reader = EventReader(shared, RINGS, RING_SIZE, Clock(ticks, lambda: ticks.now * 1_000_000))
    reader.add([EventDecoder(PROGRAM)])
    text, objects = io.StringIO(), io.StringIO()
    events = [*reader.poll(), *reader.flush(skip_holes=True)]
    TextSink(text, lambda pid, tid: "").write(events)
    JsonSink(objects).write(events)
    for row in text.getvalue().splitlines():
        assert is_harmless(row), ascii(row)
    for row in objects.getvalue().splitlines():
        json.loads(row)
    assert len(events) * PROGRAM.format.size <= RINGS * RING_SIZE
    reader.close()
    return bool(events)


# Others

FILTER = struct.pack("<HBBI", 0x20, 0, 0, 4) + struct.pack("<HBBI", 0x15, 1, 0, 0xC000003E)
FILTER += struct.pack("<HBBI", 0x06, 0, 0, 0) + struct.pack("<HBBI", 0x20, 0, 0, 32)
FILTER += struct.pack("<HBBI", 0x54, 0, 0, 6) + struct.pack("<HBBI", 0x02, 0, 0, 3)
FILTER += struct.pack("<HBBI", 0x61, 0, 0, 3) + struct.pack("<HBBI", 0x3C, 0, 0, 0)
FILTER += struct.pack("<HBBI", 0x35, 1, 0, 2) + struct.pack("<HBBI", 0x06, 0, 0, 0x7FFF0000)
FILTER += struct.pack("<HBBI", 0x16, 0, 0, 0)


def use_filter(data: bytes) -> bool:
    program = decode(data)
    found = [answers(program, call) for call in INJECTED]
    assert all(found)
    return any(None not in each for each in found)


NAMES = (
    b"_ZNSt6vectorIiSaIiEE9push_backEOi", b"_ZThn16_N2ns1T3actEi", b"_ZTv0_n24_NSoD1Ev", b"_ZN4core3fmt5Write"
    b"9write_fmt17h0123456789abcdefE", b"_RNvNtCs1234_7mycrate3foo3bar", b"_ZZ4mainENKUlvE_clEv",
    b"_ZSt4moveIRSt6vectorISsSaISsEEEONSt16remove_referenceIT_E4typeEOS5_", b"_ZTh0_1fv",
)  # fmt: skip


def use_name(data: bytes) -> bool:
    name = printable(data)
    assert name.isprintable()
    assert readable(name).isprintable()
    return demangle(name) is not None


def signal_frames(folder: Path) -> Sequence[Seed]:
    frame = bytes(40) + struct.pack("<QQQ", SESSION_ADDRESS, SESSION_ADDRESS + 8, 0x246) + stacks.SEGMENTS
    return [Seed.whole(frame * 3)]


def use_stack(data: bytes) -> bool:
    return bool(list(stacks.saved_contexts(data)))


PARSERS = (
    _elf("ELF headers", ()),
    _elf("symbol tables", elf.SYMBOLS),
    _elf("build-ids, notes", elf.NOTES),
    _elf("unwind and exception tables", elf.FRAMES),
    _elf("relocations, .dynamic", elf.RELOCATIONS),
    _elf("code, jump tables (verdicts)", elf.CODE, elf.use_code),
    _packed(".gnu_debugdata", elf.compressed_symbols, ".gnu_debugdata"),
    Parser(".gnu_debugdata, expanded", _inside(elf.inner_symbols), elf.use_inner),
    _packed(".gnu_debuglink", elf.linked_symbols, ".gnu_debuglink"),
    Parser("mangled names", lambda folder: [Seed.whole(name) for name in NAMES], use_name, moves=True),
    Parser("/proc/PID/maps", lambda folder: [Seed.whole(MAPS)], use_maps, moves=True),
    Parser("the loader's list", _inside(elf.loader_list), elf.use_loader_list),
    Parser("session header and table", session, use_session),
    Parser("rings and events", rings, use_rings),
    Parser("signal frames", signal_frames, use_stack, moves=True),
    Parser("system call filters", lambda folder: [Seed.whole(FILTER)], use_filter, moves=True),
)
