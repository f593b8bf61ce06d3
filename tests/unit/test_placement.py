"""Which instructions a jump replaces, decoding in pieces, jump tables and the proofs of computed jumps."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from harness.listing import TEXT, code
from sidestep import errors
from sidestep.address import Range
from sidestep.arch.x86_64.code import FunctionCode
from sidestep.arch.x86_64.computed_jumps import computed_jumps
from sidestep.arch.x86_64.jump_tables import JumpTables, find_jump_tables
from sidestep.arch.x86_64.placement import Cover, cover, signal_returns
from sidestep.arch.x86_64.references import CodeBytes, Reference, taken_addresses
from sidestep.errors import Refusal

TABLE = 0x4000


def function(listing: str, gap: str = "") -> FunctionCode:
    return FunctionCode(TEXT, code(listing), bytes.fromhex(gap))


def covered(listing: str, index: int = 0, gap: str = "", until: int = 0) -> Cover:
    found = cover(function_upto(listing, index, gap), index, until)
    assert isinstance(found, Cover), found
    return found


def function_upto(listing: str, index: int, gap: str = "") -> FunctionCode:
    decoded = function(listing, gap)
    decoded.decode_all()
    assert len(decoded.instructions) > index
    return decoded


# Decoding


def test_decoding_goes_as_far_as_somebody_asks() -> None:
    decoded = function("90 " * 2000)
    assert decoded.boundaries == [TEXT]
    assert decoded.decode_to(TEXT + 3)
    assert 4 <= len(decoded.instructions) < 100
    assert decoded.is_boundary(TEXT + 3)
    assert not decoded.is_boundary(TEXT + 1999)
    assert decoded.decode_all()
    assert len(decoded.instructions) == 2000
    assert decoded.boundaries == list(range(TEXT, TEXT + 2001))
    assert not decoded.decode_to(TEXT + 2000)
    assert not decoded.decode_to(TEXT - 1)


def test_no_instruction_is_cut_where_a_piece_ends() -> None:
    long = "48 b8 88 77 66 55 44 33 22 11 "  # movabs $0x1122334455667788,%rax
    decoded = function(long * 300)
    assert decoded.decode_all()
    assert decoded.boundaries == list(range(TEXT, TEXT + 3001, 10))
    assert decoded.containing(TEXT + 995) is decoded.instructions[99]


def test_decoding_stops_where_bytes_are_no_instruction() -> None:
    decoded = function("55 06 90 90")  # push %rbp; (bad)
    assert decoded.decode_to(TEXT)
    assert not decoded.decode_to(TEXT + 1)
    assert decoded.stuck
    assert decoded.reach == TEXT + 1
    assert decoded.containing(TEXT + 2) is None
    # The last instruction crosses the function's end.
    assert not function("90 48 8b").decode_all()


def test_branches_of_a_function() -> None:
    decoded = function(
        "eb 01 90 74 fb e8 00 01 00 00 ff e0 c3"
    )  # jmp 1003; nop; je 1000; call 110a; jmp *%rax; ret
    assert [target for target, _ in decoded.branches] == [0x1003, 0x1000, 0x110A]
    assert decoded.doubtful is None


@pytest.mark.parametrize(
    ("listing", "doubtful"),
    [
        ("74 01 f0 ff 07 c3", False),  # je past the lock prefix of lock incl (%rdi)
        ("74 01 f3 a4 c3", False),  # je past the rep prefix of rep movsb
        ("eb 02 48 b8 b8 01 00 00 00 90 90 90 c3", True),  # jmp into what is decoded as a movabs
        ("eb 01 05 31 c0 c3 90 c3", True),  # jmp into what is decoded as an add of an immediate
    ],
)
def test_branches_into_instructions(listing: str, doubtful: bool) -> None:
    assert (function(listing).doubtful is not None) == doubtful


# Covers


def test_a_cover_has_whole_instructions() -> None:
    # push %rbp; mov %rsp,%rbp; sub $16,%rsp
    found = covered("55 48 89 e5 48 83 ec 10 c3")
    assert (found.start, found.end) == (TEXT, TEXT + 8)
    assert found.inner == [TEXT + 1, TEXT + 4]
    assert found.is_straight
    assert not found.is_padded


def test_a_cover_can_be_asked_to_hold_an_instruction() -> None:
    # mov $1,%eax; pop %rbp; ret
    found = covered("b8 01 00 00 00 5d c3", 0, until=2)
    assert (found.end, found.inner) == (TEXT + 7, [TEXT + 5, TEXT + 6])


def test_branches_inside_a_cover() -> None:
    assert covered("89 f8 e2 fe 01 f8 c3").has_inner_branches  # mov; loop to itself; add
    assert not covered("89 f8 e2 fc 01 f8 c3").has_inner_branches  # loop to the start
    assert not covered("89 f8 e2 02 01 f8 c3").has_inner_branches  # loop to behind it
    assert covered("74 02 89 f8 89 f8 c3").has_inner_branches  # je over a mov


@pytest.mark.parametrize(
    ("listing", "gap", "end"),
    [
        ("c3", "90 90 90 90", 5),  # ret; nops
        ("c3", "66 2e 0f 1f 84 00 00 00 00 00", 11),  # ret; cs nopw 0(%rax,%rax)
        ("c3 0f 1f 40 00", "", 5),  # the nop belongs to the function
        ("c3 90 90", "cc cc", 5),
        ("eb fe", "cc cc cc", 5),  # jmp to itself; int3
        ("85 ff", "0f 1f 00", 5),  # test %edi,%edi; falls into a nop
    ],
)
def test_padding_completes_a_cover(listing: str, gap: str, end: int) -> None:
    found = covered(listing, gap=gap)
    assert found.end == TEXT + end
    assert found.is_padded


@pytest.mark.parametrize(
    ("listing", "gap"),
    [
        ("c3", ""),
        ("c3", "90 90 90"),
        ("c3", "90 90 31 c0"),  # xor %eax,%eax is no padding
        ("c3", "00 00 00 00"),
        ("c3 31 c0 90 90", ""),
        ("85 ff", "cc cc cc"),  # control would fall into int3, which does not move
    ],
)
def test_what_is_too_short(listing: str, gap: str) -> None:
    found = cover(function_upto(listing, 0, gap), 0)
    assert isinstance(found, Refusal)
    assert found.reason in (errors.TOO_SHORT, errors.NOT_RELOCATABLE)


def test_pages() -> None:
    nops = "90 " * 0x1010
    assert not covered(nops, 0xFFB).crosses_page
    assert all(covered(nops, index).crosses_page for index in (0xFFC, 0xFFD, 0xFFE, 0xFFF))
    assert not covered(nops, 0x1000).crosses_page


def test_the_signal_return_path_is_found_by_its_bytes() -> None:
    # nop; mov $15,%rax; syscall; nop; mov $15,%eax; syscall; mov $15,%ecx; syscall
    content = bytes.fromhex("90 48c7c00f000000 0f05 90 b80f000000 0f05 b90f000000 0f05")
    assert signal_returns(content, TEXT) == [Range(TEXT + 1, TEXT + 10), Range(TEXT + 11, TEXT + 18)]


# Jump tables


def tables(numbers: dict[int, Sequence[int]], taken: Sequence[int]) -> JumpTables:
    data = bytearray(256)
    for address, values in numbers.items():
        struct.pack_into(f"<{len(values)}i", data, address - TABLE, *values)
    stretches = [CodeBytes(TEXT, bytes(0x200)), CodeBytes(TABLE, bytes(data))]
    return find_jump_tables(taken, stretches, [Range(TEXT, TEXT + 0x200)])


def test_a_table_ends_where_a_number_does_not_lead_into_code() -> None:
    found = tables({TABLE: [0x1010 - TABLE, 0x1000 - TABLE, 0x1200 - TABLE, 0x1020 - TABLE]}, [TABLE])
    assert found.bases == {TABLE}
    assert list(found.labels) == [0x1000, 0x1010]


def test_a_table_ends_where_the_next_one_starts() -> None:
    second = TABLE + 8
    numbers = {TABLE: [0x1010 - TABLE, 0x1020 - TABLE], second: [0x1030 - second, 0x1040 - second]}
    assert list(tables(numbers, [TABLE, second]).labels) == [0x1010, 0x1020, 0x1030, 0x1040]
    # Without the second one, what it holds is read from the first one's address.
    assert list(tables(numbers, [TABLE]).labels) == [0x1010, 0x1020, 0x1028, 0x1038]


def test_other_data_is_no_table() -> None:
    assert not tables({TABLE: [0x1010 - TABLE]}, [TABLE + 4, TABLE + 5, TABLE + 255, 0x9000]).bases
    assert not tables({}, [TABLE]).bases


def test_a_table_may_start_with_zeros() -> None:
    assert list(tables({TABLE: [0, 0, 0x1010 - TABLE]}, [TABLE]).labels) == [0x1010]
    # The number belongs to the table that starts behind the zeros.
    third = TABLE + 8
    found = tables({TABLE: [0, 0, 0x1010 - third]}, [TABLE, third])
    assert (found.bases, list(found.labels)) == ({third}, [0x1010])


# Computed jumps

FAR = "48 63 04 ba 48 01 d0 ff e0"  # movslq (%rdx,%rdi,4),%rax; add %rdx,%rax; jmp *%rax


def lea(register: str, field: int, target: int) -> str:
    """lea target(%rip) with its displacement at address `field`."""
    opcode = {"rdx": "48 8d 15", "rax": "48 8d 05", "rcx": "48 8d 0d"}[register]
    return opcode + struct.pack("<i", target - field - 4).hex()


NONE = JumpTables([], [])
ONE = JumpTables([TABLE], [0x1010])


def proved(listing: str, known: JumpTables = ONE, numbers: Sequence[int] = ()) -> bool:
    return computed_jumps(function(listing), known, lambda address: numbers).unproved is None


@pytest.mark.parametrize(
    ("listing", "how"),
    [
        (lea("rdx", TEXT + 3, TABLE) + FAR, "as GCC -O2 does it"),
        (lea("rdx", TEXT + 3, TABLE) + "48 63 04 ba 48 01 c2 ff e2", "the sum in the table's register"),
        (lea("rdx", TEXT + 3, TABLE) + "48 63 04 ba 48 8d 04 10 ff e0", "the sum by lea (%rax,%rdx),%rax"),
        (
            # mov %edi,%eax; lea 0(,%rax,4),%rdx; lea T,%rax; mov (%rdx,%rax),%eax; cltq; lea T,%rdx; add; jmp
            "89 f8 48 8d 14 85 00 00 00 00" + lea("rax", TEXT + 13, TABLE) + "8b 04 02 48 98"
            + lea("rdx", TEXT + 25, TABLE) + "48 01 d0 ff e0",
            "as GCC -O0 does it",
        ),
        (
            "48 63 05" + struct.pack("<i", TABLE + 8 - TEXT - 7).hex()
            + lea("rdx", TEXT + 10, TABLE) + "48 01 d0 ff e0",
            "with a constant index",
        ),
        ("48 8b 54 24 08" + FAR, "the table's address was spilled"),
        (FAR, "the table's address comes from elsewhere"),
        (lea("rdx", TEXT + 3, TABLE) + "48 8b 44 24 08 48 01 d0 ff e0", "the entry was spilled"),
    ],
)  # fmt: skip
def test_sums_of_jump_tables_are_proved(listing: str, how: str) -> None:
    assert proved(listing), how


@pytest.mark.parametrize(
    ("listing", "how"),
    [
        (lea("rdx", TEXT + 3, TABLE + 4) + FAR, "no table is known there"),
        (
            lea("rdx", TEXT + 3, TABLE) + "48 63 04 b9 48 01 d0 ff e0",
            "the entry is of another table: (%rcx,%rdi,4)",
        ),
        (
            lea("rdx", TEXT + 3, TABLE) + "48 63 04 ba 48 ff c2 48 01 d0 ff e0",
            "inc %rdx between load and sum",
        ),
        (lea("rdx", TEXT + 3, TABLE) + "8b 04 ba 48 01 d0 ff e0", "the number is not sign-extended"),
        (
            lea("rdx", TEXT + 3, TABLE) + "48 0f bf 04 7a 48 01 d0 ff e0",
            "numbers of 16 bits: movswq (%rdx,%rdi,2)",
        ),
        (lea("rdx", TEXT + 3, TABLE) + "48 c1 e7 04 48 01 fa ff e2", "add of a scaled index"),
    ],
)
def test_other_sums_are_not_proved(listing: str, how: str) -> None:
    assert not proved(listing), how


def test_offsets_from_a_label() -> None:
    listing = (
        lea("rcx", TEXT + 3, TABLE)  # lea TABLE(%rip),%rcx
        + lea("rdx", TEXT + 10, TEXT + 0x18)  # lea label(%rip),%rdx
        + "48 63 04 b9 48 01 d0 ff e0"  # movslq (%rcx,%rdi,4),%rax; add %rdx,%rax; jmp *%rax
        + "90" + "90" * 16
    )  # fmt: skip
    known = computed_jumps(
        function(listing), NONE, lambda address: [0, 4, 6, 1 << 30, 8] if address == TABLE else []
    )
    assert known.unproved is None
    assert known.labels == {TEXT + 0x18, TEXT + 0x1C, TEXT + 0x1E}


def test_a_jump_behind_bytes_that_cannot_be_decoded_is_not_proved() -> None:
    found = computed_jumps(function("90 06 ff e0"), NONE, lambda address: [])
    assert found.unproved is not None
    assert computed_jumps(function("90 06 90 90"), NONE, lambda address: []).unproved is None


def test_the_place_that_takes_an_address_is_part_of_the_answer() -> None:
    content = bytes.fromhex(lea("rdx", TEXT + 3, TABLE))
    assert list(taken_addresses([CodeBytes(TEXT, content)])) == [Reference(TABLE, TEXT + 3)]
