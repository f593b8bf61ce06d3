"""Mutations of valid inputs: bytes, bits, numbers of every width, pieces copied, cut out, put in."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

BYTES = (0, 1, 2, 0x7F, 0x80, 0xFF)
CHANGES = (1, 1, 2, 5, 20)


@dataclass(frozen=True, slots=True)
class Seed:
    """A valid input, and where changing it shows something: offsets, each stretch as likely as the others."""

    data: bytes
    places: tuple[range, ...]

    @classmethod
    def whole(cls, data: bytes) -> Seed:
        return cls(data, (range(len(data)),))


def mutate(source: random.Random, seed: Seed, *, moves: bool = False) -> bytes:
    """A changed copy. With `moves` its length may change: bytes are cut out and put in."""
    changed = bytearray(seed.data)
    for _ in range(source.choice(CHANGES)):
        position = source.choice(source.choice(seed.places))
        _change(source, changed, position, seed, moves)
    return bytes(changed)


def _change(source: random.Random, changed: bytearray, position: int, seed: Seed, moves: bool) -> None:
    position = min(position, len(changed) - 1)
    if position < 0:
        return
    kind = source.randrange(6 if moves else 4)
    if kind == 0:
        changed[position] = source.choice(BYTES)
    elif kind == 1:
        changed[position] ^= 1 << source.randrange(8)
    elif kind == 2:
        width = source.choice((2, 4, 8))
        position = max(min(position & -width, len(changed) - width), 0)
        value = source.choice(_numbers(source, changed, width)) & (1 << 8 * width) - 1
        changed[position : position + width] = value.to_bytes(width, "little")
    elif kind == 3:
        piece = _piece(source, seed)[: len(changed) - position]
        changed[position : position + len(piece)] = piece
    elif kind == 4:
        del changed[position : position + source.randrange(1, 32)]
    else:
        changed[position:position] = _piece(source, seed)


def _numbers(source: random.Random, changed: bytearray, width: int) -> Sequence[int]:
    bits = 8 * width
    size = len(changed)
    return 0, 1, -1, 1 << bits - 1, source.getrandbits(bits), size, size - 1, source.randrange(size)


def _piece(source: random.Random, seed: Seed) -> bytes:
    start = source.choice(source.choice(seed.places))
    return seed.data[start : start + source.randrange(1, 64)]
