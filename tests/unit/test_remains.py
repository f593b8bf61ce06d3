"""Records of a session that the program has overwritten: believed only as far as they describe a jump."""

from __future__ import annotations

import struct

import pytest

from sidestep.address import Range
from sidestep.events.layout import STATE_ARMED, ProbeRecord
from sidestep.target.process.remains import is_into

SITE = 0x7F0000000000


def record(buffer: int, displacement: int, opcode: int = 0xE9, length: int = 5) -> ProbeRecord:
    jump = struct.pack("<Bi", opcode, displacement)[:length]
    return ProbeRecord(SITE, SITE, buffer, STATE_ARMED, bytes(length), jump, 0, "f+0x0")


@pytest.mark.parametrize("displacement", [0x1000, -0x1000, (1 << 31) - 1, -(1 << 31)])
def test_a_jump_into_an_arena(displacement: int) -> None:
    buffer = SITE + 5 + displacement
    arena = Range(buffer & -4096, (buffer & -4096) + 4096)
    assert is_into(record(buffer, displacement), [arena])
    assert not is_into(record(buffer, displacement), [Range(0, 4096)])
    assert not is_into(record(buffer, displacement), [])
    assert not is_into(record(buffer, displacement, opcode=0xE8), [arena])
    assert not is_into(record(buffer, displacement, length=4), [arena])


@pytest.mark.parametrize("buffer", [0, 1, SITE - (1 << 31) + 1, SITE + (1 << 31) + 4, (1 << 64) - 1])
def test_a_buffer_that_the_jump_does_not_lead_to(buffer: int) -> None:
    """Some are just out of reach of any jump."""
    assert not is_into(record(buffer, 0x1000), [Range(0, 1 << 64)])
