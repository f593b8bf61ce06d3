"""The instructions of one function, decoded from its start as far as somebody asked."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate, compress, islice
from operator import attrgetter

from sidestep.arch.x86_64.insn import Instruction, decode, direct_branch_target

_LONGEST = 15  # bytes of an instruction
# What does not decode with so many bytes is no instruction.
_FIRST_PIECE = 48
_PIECE = 512
_leaves_the_line = attrgetter("flow_control")


class FunctionCode:
    """One function's original bytes and their instructions.

    Decoding starts at the function's start, which is an instruction boundary by definition, and goes on in
    pieces: a probe at the entry of a function of 20 KiB costs a few instructions. `boundaries` holds the
    address of every decoded instruction and, as its last element, the address behind them.
    """

    __slots__ = (
        "_branches",
        "_bytes",
        "_doubtful",
        "boundaries",
        "end",
        "gap",
        "instructions",
        "start",
        "stuck",
    )

    def __init__(self, start: int, code: bytes, gap: bytes = b"") -> None:
        """`gap`: the bytes behind the function that belong to nothing."""
        self.start = start
        self.gap = gap
        self.end = start + len(code)
        self._bytes = code
        self.instructions: list[Instruction] = []
        self.boundaries: list[int] = [start]
        self.stuck = False
        self._branches: list[tuple[int, Instruction]] | None = None
        self._doubtful: list[Instruction] | None = None

    @property
    def code(self) -> bytes:
        return self._bytes

    @property
    def reach(self) -> int:
        """The address behind what is decoded so far; with `stuck` set, nothing there can be decoded."""
        return self.boundaries[-1]

    def decode_to(self, address: int) -> bool:
        """Decode until an instruction covers `address`; False: the bytes before it, or at it, are none."""
        boundaries = self.boundaries
        if address < boundaries[-1]:
            return address >= self.start
        while boundaries[-1] <= address:
            at = boundaries[-1]
            if self.stuck or at >= self.end:
                return False
            offset = at - self.start
            size = max(_FIRST_PIECE, min(address - at + _LONGEST, _PIECE))
            more = decode(self._bytes[offset : offset + size], at)
            if not more:
                self.stuck = True
                return False
            self.instructions += more
            boundaries.extend(islice(accumulate(map(len, more), initial=at), 1, None))
        return True

    def decode_all(self) -> bool:
        """Decode the whole function; False: `reach` is where it stops."""
        return self.decode_to(self.end - 1)

    def index_containing(self, address: int) -> int | None:
        """The index of the instruction that has a byte at `address`; None: it cannot be decoded."""
        if not self.decode_to(address):
            return None
        return bisect_right(self.boundaries, address) - 1

    def containing(self, address: int) -> Instruction | None:
        index = self.index_containing(address)
        return None if index is None else self.instructions[index]

    def is_boundary(self, address: int) -> bool:
        """`address` is where an instruction of the decoded part starts."""
        index = bisect_left(self.boundaries, address)
        return index < len(self.instructions) and self.boundaries[index] == address

    @property
    def branches(self) -> list[tuple[int, Instruction]]:
        """(target, instruction) of every branch, loop and call whose target is in its encoding, of all that
        can be decoded."""
        if self._branches is None:
            self.decode_all()
            found = []
            for instruction in compress(self.instructions, map(_leaves_the_line, self.instructions)):
                target = direct_branch_target(instruction)
                if target is not None:
                    found.append((target, instruction))
            self._branches = found
        return self._branches

    @property
    def doubtful(self) -> Instruction | None:
        """A branch that leads into the middle of an instruction of this function, or None.

        Such a branch says that data stands between the instructions, or that two instruction streams share
        bytes: then being no instruction in this decoding proves nothing. A branch past prefixes (`lock` is
        skipped so) is no sign of that: the rest of the instruction is an instruction that ends at the same
        boundary.
        """
        if self._doubtful is None:
            found = self._find_doubtful()
            self._doubtful = [] if found is None else [found]
        return self._doubtful[0] if self._doubtful else None

    def _find_doubtful(self) -> Instruction | None:
        for target, branch in self.branches:
            if not self.start <= target < self.boundaries[-1] or self.is_boundary(target):
                continue
            instruction = self.instructions[bisect_right(self.boundaries, target) - 1]
            end = instruction.ip + len(instruction)
            rest = decode(self._bytes[target - self.start : end - self.start], target)
            if len(rest) != 1 or len(rest[0]) != end - target or rest[0].mnemonic != instruction.mnemonic:
                return branch
        return None
