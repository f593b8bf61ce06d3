"""Text around many places, read and written in few steps."""

from __future__ import annotations

from sidestep.address import Range
from sidestep.target.process.text import Text

PAGE = 4096


class Pages:
    """Memory of four pages from `START` on, of which the third is not there; notes what is done."""

    START = 0x10_000

    def __init__(self) -> None:
        self.content = bytearray(range(256)) * (4 * PAGE // 256)
        self.reads: list[tuple[int, int]] = []
        self.writes: list[tuple[int, bytes]] = []

    def read(self, address: int, size: int) -> bytes:
        raise NotImplementedError

    def read_available(self, address: int, size: int) -> bytes:
        self.reads.append((address, size))
        first = address - self.START
        if 2 * PAGE <= first < 3 * PAGE:
            return b""
        last = first + size if first >= 3 * PAGE else min(first + size, 2 * PAGE)
        return bytes(self.content[first:last])

    def write(self, address: int, data: bytes) -> None:
        self.writes.append((address, data))
        self.content[address - self.START : address - self.START + len(data)] = data


def places(*offsets: int) -> list[Range]:
    return [Range(Pages.START + offset, Pages.START + offset + 5) for offset in offsets]


def test_each_page_is_written_once_from_the_first_change_to_the_last() -> None:
    memory = Pages()
    before = bytes(memory.content)
    text = Text(memory, places(16, 32, 64, PAGE + 8))
    for offset in (64, 16, PAGE + 8):
        text.put(Pages.START + offset, b"jumps")
    text.write()
    assert len(memory.reads) == 1
    assert sorted((address - Pages.START, len(data)) for address, data in memory.writes) == [
        (16, 53),
        (PAGE + 8, 5),
    ]
    expected = bytearray(before)
    for offset in (64, 16, PAGE + 8):
        expected[offset : offset + 5] = b"jumps"
    assert memory.content == expected
    memory.writes.clear()
    text.write()
    assert memory.writes == []


def test_a_place_sees_what_was_put_there() -> None:
    text = Text(Pages(), places(16, 32))
    text.put(Pages.START + 16, b"jumps")
    assert text.at(Pages.START + 16, 5) == b"jumps"
    assert text.at(Pages.START + 32, 5) == bytes(range(32, 37))


def test_a_hole_hides_nothing_behind_it() -> None:
    text = Text(Pages(), places(2 * PAGE - 5, 2 * PAGE - 2, 3 * PAGE + 1))
    assert text.at(Pages.START + 2 * PAGE - 5, 5) == bytes(range(251, 256))
    assert text.at(Pages.START + 2 * PAGE - 2, 5) == b"\xfe\xff"
    assert text.at(Pages.START + 3 * PAGE + 1, 5) == bytes(range(1, 6))
