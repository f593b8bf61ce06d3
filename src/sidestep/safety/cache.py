"""Reference tables of large files, kept from one session to the next.

A file is known by a hash of its code, so that a table can never be applied to other code; the form of what is
kept is checked.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from array import array
from collections.abc import Sequence

from sidestep import private_files
from sidestep.arch.x86_64.references import CodeBytes, ReferenceTable

KIND = "references"
# Smaller files are searched or tabulated faster than the disk is worth.
_SMALLEST = 1 << 20
_MAGIC = b"SDSTREF1"
_HEADER = struct.Struct("<8s32sQQI4x")


def load(code: Sequence[CodeBytes]) -> ReferenceTable | None:
    """The table of exactly this code, if it was stored before."""
    if private_files.directory(KIND) is None or sum(len(each.content) for each in code) < _SMALLEST:
        return None
    digest = _digest(code)
    raw = private_files.load(KIND, digest.hex())
    if raw is None or len(raw) < _HEADER.size:
        return None
    magic, stored, base, count, checksum = _HEADER.unpack_from(raw)
    body = raw[_HEADER.size :]
    lowest = min(each.start for each in code)
    if (
        (magic, stored, base) != (_MAGIC, digest, lowest)
        or len(body) != 8 * count
        or zlib.crc32(body) != checksum
    ):
        return None
    return ReferenceTable(base, array("Q", body))


def store(code: Sequence[CodeBytes], table: ReferenceTable) -> None:
    """Keep a table; silently does nothing where that is not possible."""
    if private_files.directory(KIND) is None or sum(len(each.content) for each in code) < _SMALLEST:
        return
    digest = _digest(code)
    body = table.packed.tobytes()
    header = _HEADER.pack(_MAGIC, digest, table.base, len(table.packed), zlib.crc32(body))
    private_files.store(KIND, digest.hex(), header + body)


def _digest(code: Sequence[CodeBytes]) -> bytes:
    """Of the code and where it lies."""
    digest = hashlib.sha256()
    for start, content in code:
        digest.update(struct.pack("<QQ", start, len(content)))
        digest.update(content)
    return digest.digest()
