"""Writes machine code for an address where it will run.

Where the bytes are put is the caller's business: `finish` returns them. A label is any hashable value;
jumps to them have 32-bit displacements, so that addresses are final once they are emitted.
"""

from __future__ import annotations

from collections.abc import Hashable

from sidestep.arch.x86_64.insn import Instruction, encode
from sidestep.arch.x86_64.shapes import Piece, RipRelative, register_number

# The low four bits of 0F 8x, in the names that assemblers use.
CONDITIONS: dict[str, int] = {
    "o": 0, "no": 1, "b": 2, "c": 2, "nae": 2, "ae": 3, "nb": 3, "nc": 3, "e": 4, "z": 4, "ne": 5, "nz": 5,
    "be": 6, "na": 6, "a": 7, "nbe": 7, "s": 8, "ns": 9, "p": 10, "pe": 10, "np": 11, "po": 11,
    "l": 12, "nge": 12, "ge": 13, "nl": 13, "le": 14, "ng": 14, "g": 15, "nle": 15,
}  # fmt: skip

_ABSOLUTE_JUMP = b"\xff\x25\x00\x00\x00\x00"  # jmp *(%rip)
_ABSOLUTE_CALL = b"\xff\x15\x02\x00\x00\x00\xeb\x08"  # call *2(%rip); jmp over the literal


def fits_32_bits(displacement: int) -> bool:
    """A signed 32-bit displacement can hold it."""
    return -0x8000_0000 <= displacement <= 0x7FFF_FFFF


class Assembler:
    """Collects code that will run at `address`."""

    __slots__ = ("_code", "_fixups", "_labels", "address")

    def __init__(self, address: int) -> None:
        self.address = address
        self._code = bytearray()
        self._labels: dict[Hashable, int] = {}
        self._fixups: list[tuple[int, Hashable]] = []

    @property
    def here(self) -> int:
        """The address of the next instruction."""
        return self.address + len(self._code)

    def raw(self, code: bytes) -> None:
        """Position-independent bytes as they are."""
        self._code += code

    def emit(self, piece: Piece | Instruction) -> None:
        """One instruction: a shape, or a decoded one (its RIP-relative operand and branch target are kept).

        ValueError: the operand or target is out of the encoding's reach from here.
        """
        if isinstance(piece, bytes):
            self._code += piece
        elif isinstance(piece, RipRelative):
            self._code += piece.at(self.here)
        else:
            self._code += encode(piece, self.here)

    def label(self, name: Hashable) -> int:
        """Place a label here; returns its address. ValueError: it has a place already."""
        if name in self._labels:
            raise ValueError(f"label {name!r} is placed twice")
        self._labels[name] = len(self._code)
        return self.here

    def has_label(self, name: Hashable) -> bool:
        return name in self._labels

    def address_of(self, name: Hashable) -> int:
        """The address of a label that has been placed. KeyError: it has not."""
        return self.address + self._labels[name]

    def jump(self, name: Hashable) -> None:
        self.relative(b"\xe9", name)

    def jump_if(self, condition: str | int, name: Hashable) -> None:
        """A conditional jump; `condition` is a name or a number of CONDITIONS."""
        number = condition if isinstance(condition, int) else CONDITIONS[condition]
        self.relative(bytes((0x0F, 0x80 | number)), name)

    def call(self, name: Hashable) -> None:
        self.relative(b"\xe8", name)

    def lea(self, register: str, name: Hashable) -> None:
        """Load the address of a label into a 64-bit register."""
        number = register_number(register)
        self.relative(bytes((0x48 | number >> 3 << 2, 0x8D, 0x05 | (number & 7) << 3)), name)

    def jump_to(self, target: int) -> None:
        """Jump to an absolute address: 5 bytes, or 14 if that is beyond 2 GiB. Nothing is clobbered."""
        displacement = target - (self.here + 5)
        if fits_32_bits(displacement):
            self._code += b"\xe9" + displacement.to_bytes(4, "little", signed=True)
        else:
            self._code += _ABSOLUTE_JUMP + target.to_bytes(8, "little")

    def jump_if_to(self, condition: str | int, target: int) -> None:
        """A conditional jump to an absolute address: 6 bytes, or 16 if that is beyond 2 GiB."""
        number = condition if isinstance(condition, int) else CONDITIONS[condition]
        displacement = target - (self.here + 6)
        if fits_32_bits(displacement):
            self._code += bytes((0x0F, 0x80 | number)) + displacement.to_bytes(4, "little", signed=True)
        else:
            self._code += bytes((0x70 | number ^ 1, 14)) + _ABSOLUTE_JUMP + target.to_bytes(8, "little")

    def call_to(self, target: int) -> None:
        """Call an absolute address: 5 bytes, or 16 if that is beyond 2 GiB."""
        displacement = target - (self.here + 5)
        if fits_32_bits(displacement):
            self._code += b"\xe8" + displacement.to_bytes(4, "little", signed=True)
        else:
            self._code += _ABSOLUTE_CALL + target.to_bytes(8, "little")

    def align(self, size: int) -> None:
        """Fill with int3 up to a multiple of `size` bytes."""
        self._code += b"\xcc" * (-self.here % size)

    def finish(self) -> bytes:
        """All the code, with its labels filled in. ValueError: a label was used and never placed."""
        code = self._code
        for offset, name in self._fixups:
            place = self._labels.get(name)
            if place is None:
                raise ValueError(f"label {name!r} was never placed")
            code[offset : offset + 4] = (place - offset - 4).to_bytes(4, "little", signed=True)
        return bytes(code)

    def relative(self, opcode: bytes, name: Hashable) -> None:
        """An instruction that ends in a 32-bit displacement to a label: all of its bytes but that."""
        code = self._code
        code += opcode
        self._fixups.append((len(code), name))
        code += b"\0\0\0\0"
