"""Where code may refer to other code: a search over raw bytes that misses nothing and finds too much.

A 32-bit displacement that is relative to the end of its instruction stands in every direct jump, call and
conditional jump beyond 128 bytes, in xbegin, and in every operand that is relative to the instruction
pointer: in the `lea` that takes an address and in what reads data that stands between code. Looking for the
bytes before such a displacement at *every* byte offset, whether or not an instruction starts there, needs
no decoding and no knowledge of where functions are, and holds for overlapping and misaligned instructions
as well. Decoding the function around a find then confirms or rejects it. Addresses are ELF virtual
addresses.

Encodings: Intel SDM volume 2, appendix A (E8 call, E9 jmp, 0F 80-8F jcc, C7 F8 xbegin; 70-7F jcc, EB jmp,
E0-E2 loop, E3 jrcxz with 8-bit displacements) and table 2-7 (ModRM mod=00 rm=101). An immediate operand may
stand between a displacement and the end of its instruction.
"""

from __future__ import annotations

import re
import struct
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from sidestep.address import Range
from sidestep.errors import ELF_MALFORMED, TargetError

# Matches are one byte long, so that none hides another one.
_ONE_BYTE = re.compile(rb"[\xe8\xe9\x05\x0d\x15\x1d\x25\x2d\x35\x3d]")
_TWO_BYTES = re.compile(rb"\x0f(?=[\x80-\x8f])|\xc7(?=\xf8)")
_LEA = re.compile(rb"\x8d(?=[\x05\x0d\x15\x1d\x25\x2d\x35\x3d])")
_SHORT = re.compile(rb"[\x70-\x7f\xeb\xe0-\xe3](?=.)", re.DOTALL)
_signed_32 = struct.Struct("<i").unpack_from
_unsigned_32 = struct.Struct("<I").unpack_from

# How far a branch with an 8-bit displacement reaches, from its own first byte (prefixes are not part of
# it).
SHORT_REACH = 130
# By the displacement's byte: from the opcode to the target.
_SHORT_DISTANCE = [2 + (byte - 256 if byte > 127 else byte) for byte in range(256)]
_CHUNK = 1 << 16
_PIECE = 1 << 20
# References are kept as target and field in one 64-bit number, both as offsets from the lowest code
# address.
_FIELD_BITS = 32
_BUCKET_BITS = 20
LIMIT = 1 << _FIELD_BITS


# The longest immediate operand behind a displacement.
LONGEST_IMMEDIATE = 4


class Reference(NamedTuple):
    """The 32-bit displacement at `field` leads to `target`, if it is one and ends its instruction; with an
    immediate operand behind it, up to `LONGEST_IMMEDIATE` bytes further."""

    target: int
    field: int


class CodeBytes(NamedTuple):
    """A stretch of executable code: where it starts, and its bytes."""

    start: int
    content: bytes

    @property
    def end(self) -> int:
        return self.start + len(self.content)


def _may_be_displacement(code: bytes, field: int) -> bool:
    """The bytes before offset `field` could be those before a displacement."""
    if field >= 1 and _ONE_BYTE.match(code, field - 1) is not None:
        return True
    return field >= 2 and _TWO_BYTES.match(code, field - 2) is not None


def search(stretches: Iterable[CodeBytes], first: int, last: int) -> list[Reference]:
    """Every possible reference from `stretches` to the addresses `first` up to, not including, `last`.

    About 8 ms for a megabyte, whatever the size of the range (up to 64 KiB): within 64 KiB of code the
    upper half of a displacement that leads there can have two or three values only, and these are looked
    for.
    """
    found = []
    for start, code in stretches:
        end = len(code) - 3
        for chunk in range(0, end, _CHUNK):
            chunk_end = min(chunk + _CHUNK, end)
            lowest = (first - (start + chunk_end - 1 + 4)) >> 16
            highest = (last - 1 - (start + chunk + 4)) >> 16
            for half in range(lowest, highest + 1):
                for field in _with_upper_half(code, half, chunk, chunk_end):
                    target = start + field + 4 + _signed_32(code, field)[0]
                    if first <= target < last and _may_be_displacement(code, field):
                        found.append(Reference(target, start + field))
    found.sort()
    return found


def search_constants(stretches: Iterable[CodeBytes], first: int, last: int) -> list[Reference]:
    """Where `stretches` (code or data) hold, at any offset, the lower four bytes of an address from `first`
    up to, not including, `last`. Only code that is not position-independent has such constants without a
    relocation."""
    found = []
    for start, content in stretches:
        for half in range(first >> 16, (last - 1 >> 16) + 1):
            for field in _with_upper_half(content, half, 0, len(content) - 3):
                target = _unsigned_32(content, field)[0]
                if first <= target < last:
                    found.append(Reference(target, start + field))
    found.sort()
    return found


def _with_upper_half(content: bytes, half: int, first: int, last: int) -> Iterator[int]:
    """The offsets from `first` up to `last` of the 32-bit numbers whose upper half is `half`."""
    needle = (half & 0xFFFF).to_bytes(2, "little")
    find, last = content.find, last + 3
    at = find(needle, first + 2, last)
    while at >= 0:
        yield at - 2
        at = find(needle, at + 1, last)


def _highest_bytes(code: Range) -> list[tuple[re.Pattern[bytes], int]]:
    """What finds the 32-bit numbers that may lie in `code` by their highest byte, and how far its matches
    stand behind the start of the number.

    Zeros are everywhere: they are found by the byte before, which is in a narrow range."""
    patterns = []
    for highest in range(code.start >> 24, (code.end - 1 >> 24) + 1 if code.size else 0):
        literal = re.escape(bytes([highest & 0xFF]))
        if highest:
            patterns.append((re.compile(literal), 3))
        else:
            last = b"\\x%02x" % min(code.end - 1 >> 16, 0xFF)
            patterns.append((re.compile(b"[\\x%02x-%b](?=%b)" % (code.start >> 16, last, literal)), 2))
    return patterns


class ReferenceTable:
    """Every possible reference from code to code in one module, in the order of targets.

    `packed` has 8 bytes for each; some 140,000 for 3 MB of code, found in 0.2 s.
    """

    __slots__ = ("base", "packed")

    def __init__(self, base: int, packed: array[int]) -> None:
        self.base = base
        self.packed = packed

    @classmethod
    def build(
        cls, stretches: Iterable[CodeBytes], progress: Callable[[int], None] | None = None
    ) -> ReferenceTable:
        """`progress` is called with the number of bytes done. All code must lie within `LIMIT` bytes."""
        stretches = list(stretches)
        base = min((stretch.start for stretch in stretches), default=0)
        top = max((stretch.end for stretch in stretches), default=0)
        if top - base > LIMIT:
            raise TargetError("a file", ELF_MALFORMED, "its code spans more than 4 GiB")
        # One array for each megabyte of targets: sorted one by one, they never need much memory at once.
        buckets = [array("Q") for _ in range(((top - base) >> _BUCKET_BITS) + 1)]
        signed_32, span, done = _signed_32, top - base, 0
        for stretch in stretches:
            code, shift = stretch.content, stretch.start - base
            limit = len(code) - 4
            for piece in range(0, len(code), _PIECE):
                piece_end = min(piece + _PIECE, len(code))
                for opcode, size in ((_ONE_BYTE, 1), (_TWO_BYTES, 2)):
                    for match in opcode.finditer(code, piece, min(piece_end + size - 1, len(code))):
                        field = match.start() + size
                        if field > limit:
                            continue
                        target = field + shift + 4 + signed_32(code, field)[0]
                        if 0 <= target < span:
                            buckets[target >> _BUCKET_BITS].append(target << _FIELD_BITS | field + shift)
                if progress is not None:
                    progress(done + piece_end)
            done += len(code)
        packed = array("Q")
        for number, bucket in enumerate(buckets):
            packed.extend(sorted(bucket))
            buckets[number] = array("Q")
        return cls(base, packed)

    @classmethod
    def build_constants(
        cls, stretches: Iterable[CodeBytes], code: Range, progress: Callable[[int], None] | None = None
    ) -> ReferenceTable:
        """The table of every place in `stretches` (code and data) that holds the lower four bytes of an
        address in `code`, below 4 GiB; 20 ns a byte. `progress` is called with the number of bytes done."""
        stretches = list(stretches)
        base = min(code.start, *(stretch.start for stretch in stretches))
        top = max(code.end, *(stretch.end for stretch in stretches))
        if top - base > LIMIT:
            raise TargetError("a file", ELF_MALFORMED, "its segments span more than 4 GiB")
        highest_bytes = _highest_bytes(code)
        first, last, unsigned_32 = code.start, code.end, _unsigned_32
        packed: list[int] = []
        done = 0
        for start, content in stretches:
            shift, limit = start - base, len(content) - 4
            for piece in range(0, len(content), _PIECE):
                piece_end = min(piece + _PIECE, len(content))
                for highest, distance in highest_bytes:
                    packed += [
                        number - base << _FIELD_BITS | field + shift
                        for match in highest.finditer(content, piece, min(piece_end + 1, len(content)))
                        if 0 <= (field := match.start() - distance) <= limit
                        and first <= (number := unsigned_32(content, field)[0]) < last
                    ]
                if progress is not None:
                    progress(done + piece_end)
            done += len(content)
        return cls(base, array("Q", sorted(packed)))

    @classmethod
    def build_short(cls, stretches: Iterable[CodeBytes]) -> ReferenceTable:
        """The table of every possible branch with an 8-bit displacement, `field` as in `short_branches`;
        30 ns a byte."""
        stretches = list(stretches)
        base = min((stretch.start for stretch in stretches), default=0)
        top = max((stretch.end for stretch in stretches), default=0)
        if top - base > LIMIT:
            raise TargetError("a file", ELF_MALFORMED, "its code spans more than 4 GiB")
        packed: list[int] = []
        for start, code in stretches:
            shift = start - base
            packed += [
                at + shift + _SHORT_DISTANCE[code[at + 1]] << _FIELD_BITS | at + shift
                for at in map(re.Match.start, _SHORT.finditer(code))
                if at + shift + _SHORT_DISTANCE[code[at + 1]] >= 0
            ]
        packed.sort()
        return cls(base, array("Q", packed))

    def into(self, first: int, last: int) -> list[Reference]:
        """The references to the addresses `first` up to, not including, `last`, in the order of targets."""
        base, packed = self.base, self.packed
        low = max(first - base, 0) << _FIELD_BITS
        high = max(last - base, 0) << _FIELD_BITS
        index = bisect_left(packed, low)
        found = []
        while index < len(packed) and packed[index] < high:
            value = packed[index]
            found.append(Reference((value >> _FIELD_BITS) + base, (value & (LIMIT - 1)) + base))
            index += 1
        return found


def short_branches(code: bytes, start: int, first: int, last: int) -> list[Reference]:
    """Possible branches with an 8-bit displacement in `code` (at address `start`) into `first` up to, not
    including, `last`; `field` is the address of the opcode."""
    found = []
    for match in _short_matches(code, first - start, last - start):
        at = match.start()
        displacement = code[at + 1]
        target = start + at + 2 + (displacement - 256 if displacement > 127 else displacement)
        if first <= target < last:
            found.append(Reference(target, start + at))
    return found


def _short_matches(code: bytes, first: int, last: int) -> Iterator[re.Match[bytes]]:
    """Opcodes of short branches that may lead to the offsets `first` up to `last`."""
    if last - first > _NARROW:
        yield from _SHORT.finditer(code, max(first - SHORT_REACH, 0), max(last + SHORT_REACH, 0))
        return
    # From 32 bytes of code, few displacements lead into a narrow range: seven times fewer matches to look
    # at.
    for distance, opcode in _SHORT_BY_DISTANCE:
        at = first + distance
        if at > -_STEP:
            # One byte more than the step: the lookahead reads the displacement of an opcode at its last
            # byte.
            yield from opcode.finditer(code, max(at, 0), at + _STEP + 1)


def _short_at_distance(distance: int) -> re.Pattern[bytes]:
    """Matches the opcode of a short branch that stands `distance` to `distance + _STEP` bytes from the first
    target and leads to it or to one of the `_NARROW` bytes from there."""
    # target = at + 2 + displacement, target - first in [0, _NARROW), at - first in [distance, distance +
    # _STEP)
    lowest = max(-distance - _STEP - 1, -128)
    highest = min(_NARROW - 1 - distance - 2, 127)
    displacements = b"".join(b"\\x%02x" % (value & 0xFF) for value in range(lowest, highest + 1))
    return re.compile(rb"[\x70-\x7f\xeb\xe0-\xe3](?=[" + displacements + rb"])", re.DOTALL)


_NARROW = 32
_STEP = 32
_SHORT_BY_DISTANCE = [
    (distance, _short_at_distance(distance)) for distance in range(-SHORT_REACH, 126 + _NARROW, _STEP)
]


class Taken:
    """The addresses that code may take, in the order of the places where it does."""

    __slots__ = ("fields", "targets")

    def __init__(self) -> None:
        self.targets = array("q")
        self.fields = array("q")

    def __iter__(self) -> Iterator[Reference]:
        return map(Reference, self.targets, self.fields)


def taken_addresses(stretches: Iterable[CodeBytes]) -> Taken:
    """Every possible `lea` off the instruction pointer."""
    taken = Taken()
    for start, code in stretches:
        limit, signed_32 = len(code) - 6, _signed_32
        places = [at for match in _LEA.finditer(code) if (at := match.start()) <= limit]
        taken.fields.extend([start + at + 2 for at in places])
        taken.targets.extend([start + at + 6 + signed_32(code, at + 2)[0] for at in places])
    return taken
