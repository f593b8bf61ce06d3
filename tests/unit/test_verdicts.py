"""Verdicts about probepoints: the tactic that is taken, or the rule that forbids it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from harness.listing import DATA, TEXT, module
from sidestep import errors
from sidestep.address import Range
from sidestep.errors import Reason, Refusal
from sidestep.safety.blacklist import blacklist
from sidestep.safety.context import ModuleContext
from sidestep.safety.region import Placement
from sidestep.safety.verdict import verdict, verdicts

PROLOGUE = """
    1000: 55                   # push %rbp
    1001: 48 89 e5             # mov %rsp,%rbp
    1004: 53                   # push %rbx
    1005: 48 89 fb             # mov %rdi,%rbx
    1008: b8 01 00 00 00       # mov $1,%eax
    100d: 5b                   # pop %rbx
    100e: 5d                   # pop %rbp
    100f: c3                   # ret
"""
OTHER = """
    1010: 48 89 f8             # mov %rdi,%rax
    1013: 48 01 f0             # add %rsi,%rax
    1016: c3                   # ret
"""


def placed(context: ModuleContext, address: int) -> Placement:
    answer = verdict(context, address)
    assert isinstance(answer, Placement), answer
    return answer


def refused(context: ModuleContext, address: int, reason: Reason) -> str:
    """The detail of the refusal, which must be for that reason."""
    answer = verdict(context, address)
    assert isinstance(answer, Refusal), answer
    assert answer.reason is reason, answer
    return answer.detail


# Boundaries


def test_an_address_inside_an_instruction_is_refused_with_the_bounds() -> None:
    context = module({"f": PROLOGUE})
    detail = refused(context, 0x1003, errors.NOT_A_BOUNDARY)
    assert detail == "0x1003 is inside `mov %rsp,%rbp` at 0x1001-0x1004 (f+0x1)"


def test_an_address_outside_of_every_function_is_refused() -> None:
    context = module({"f": PROLOGUE}, gap="cc cc cc cc")
    assert "no known function contains 0x1011" in refused(context, 0x1011, errors.NOT_A_BOUNDARY)
    assert refused(context, DATA, errors.NOT_IN_TEXT) == "0x4000 in module"


def test_bytes_that_are_no_instruction_are_shown() -> None:
    context = module({"f": "55 06 90 90 90 90 90 90 c3"})  # push %rbp; (bad); nops; ret
    assert refused(context, 0x1003, errors.NOT_DECODABLE) == "06 90 90 90 90 90 90 c3 at 0x1001 in f"
    # The region of the entry would have to cover them.
    assert refused(context, 0x1000, errors.NOT_DECODABLE) == "06 90 90 90 90 90 90 c3 at 0x1001"


def test_addresses_of_the_target_have_a_bias() -> None:
    context = module({"f": PROLOGUE})
    context.bias = 0x7F00_0000_0000
    placement = placed(context, 0x7F00_0000_1000)
    assert placement.address == placement.dcr.start == 0x7F00_0000_1000
    assert [each.ip - context.bias for each in placement.instructions] == [0x1000, 0x1001, 0x1004]
    assert "0x1003 is inside" in refused(context, 0x7F00_0000_1003, errors.NOT_A_BOUNDARY)


# Tactics


def test_one_long_instruction() -> None:
    placement = placed(module({"f": PROLOGUE}), 0x1008)
    assert placement.tactic == "jump"
    assert placement.dcr == Range(0x1008, 0x100D)
    assert placement.prohibited == Range(0x1009, 0x100D)
    assert placement.interior == []


def test_a_region_of_several_instructions() -> None:
    placement = placed(module({"f": PROLOGUE}), 0x1000)
    assert placement.tactic == "region"
    assert placement.dcr == Range(0x1000, 0x1005)
    assert placement.interior == [0x1001, 0x1004]


@pytest.mark.parametrize("padding", ["90 90 90 90", "cc cc cc cc", "0f 1f 40 00", "66 90 66 90"])
def test_padding_behind_a_function(padding: str) -> None:
    context = module({"f": "31 c0 c3"}, gap=padding)  # xor %eax,%eax; ret
    placement = placed(context, 0x1000)
    assert placement.tactic == "padding"
    assert placement.dcr.end in (0x1005, 0x1007)
    assert len(placement.instructions) == 2
    context = module({"f": "31 c0 c3", "g": "c3"}, gap=padding)
    assert placed(context, 0x1000).tactic == "padding"


def test_padding_inside_a_function_behind_a_jump() -> None:
    listing = """
        1000: 85 ff                # test %edi,%edi
        1002: 75 08                # jne 100c
        1004: 31 c0                # xor %eax,%eax
        1006: c3                   # ret
        1007: 0f 1f 44 00 00       # nopl 0(%rax,%rax)
        100c: b8 05 00 00 00       # mov $5,%eax
        1011: c3                   # ret
    """
    placement = placed(module({"f": listing}), 0x1004)
    assert (placement.tactic, placement.dcr) == ("padding", Range(0x1004, 0x100C))
    assert [each.ip for each in placement.instructions] == [0x1004, 0x1006]


def test_padding_that_control_falls_into_moves_as_whole_instructions() -> None:
    # sub $1,%edi; then a nop of 8 bytes; g follows, control falls into it
    context = module({"f": "83 ef 01", "g": "b8 01 00 00 00 c3"}, gap="0f 1f 84 00 00 00 00 00")
    placement = placed(context, 0x1000)
    assert (placement.tactic, placement.dcr) == ("padding", Range(0x1000, 0x100B))
    assert len(placement.instructions) == 2


def test_the_bytes_of_the_next_function_are_never_touched() -> None:
    context = module({"f": "31 c0 c3", "g": "90 90 90 90 90 c3"})  # xor %eax,%eax; ret | nops; ret
    assert refused(context, 0x1000, errors.TOO_SHORT) == "`ret` at 0x1002 ends 3 bytes behind 0x1000"
    context = module({"f": "c3", "g": "c3"}, gap="cc cc cc")
    assert refused(context, 0x1000, errors.TOO_SHORT)


def test_what_follows_a_return_may_be_data() -> None:
    # xor %eax,%eax; ret; two bytes that are a fine instruction, but that nothing leads to
    context = module({"f": "31 c0 c3 31 c0 c3 90 90"})
    assert refused(context, 0x1000, errors.TOO_SHORT)
    assert refused(context, 0x1003, errors.UNREACHABLE) == "what follows `ret` at 0x1002"


def test_a_call_is_only_moved_as_the_last_instruction() -> None:
    listing = """
        1000: 53                   # push %rbx
        1001: 48 89 fb             # mov %rdi,%rbx
        1004: ff d6                # call *%rsi
        1006: 31 c0                # xor %eax,%eax
        1008: 5b                   # pop %rbx
        1009: c3                   # ret
    """
    context = module({"f": listing})
    assert placed(context, 0x1000).dcr == Range(0x1000, 0x1006)
    # The call alone is too short and nothing may follow it, but it can end a region that starts before.
    placement = placed(context, 0x1004)
    assert (placement.address, placement.dcr) == (0x1004, Range(0x1001, 0x1006))
    assert "before the probepoint" in placement.notes[0]
    # ff d6 call *%rsi; 31 c0 xor; c3 ret
    detail = refused(module({"f": "ff d6 31 c0 c3"}), 0x1000, errors.CALL_IN_REGION)
    assert detail == "`call *%rsi` at 0x1000"


def test_a_return_at_the_end_is_reached_through_a_region_before_it() -> None:
    context = module({"f": PROLOGUE, "g": OTHER})
    placement = placed(context, 0x100F)
    # pop, pop, ret have three bytes and g follows: the jump replaces the mov before them.
    assert (placement.tactic, placement.address, placement.dcr) == ("region", 0x100F, Range(0x1008, 0x1010))
    assert placement.interior == [0x100D, 0x100E, 0x100F]
    assert placement.notes == ("the region starts at 0x1008, before the probepoint",)


def test_a_region_before_the_probepoint_has_no_other_way_to_it() -> None:
    listing = """
        1000: b8 01 00 00 00       # mov $1,%eax
        1005: 85 ff                # test %edi,%edi
        1007: 5d                   # pop %rbp
        1008: c3                   # ret
        1009: 85 ff                # test %edi,%edi
        100b: 74 fa                # je 1007
        100d: eb f6                # jmp 1005
    """
    context = module({"f": listing, "g": "c3"})
    assert refused(context, 0x1007, errors.TOO_SHORT) == "`ret` at 0x1008 ends 2 bytes behind 0x1007"
    assert refused(context, 0x1008, errors.TOO_SHORT)


def test_what_cannot_be_relocated_is_named() -> None:
    context = module({"f": "0f 0b 90 90 90 90 c3"})  # ud2; nops; ret
    assert refused(context, 0x1000, errors.NOT_RELOCATABLE).startswith("`ud2` at 0x1000")


# Pages


def test_a_jump_lies_in_one_page() -> None:
    listing = """
        1ffc: 89 f8                # mov %edi,%eax
        1ffe: b8 02 00 00 00       # mov $2,%eax
        2003: b8 03 00 00 00       # mov $3,%eax
        2008: c3                   # ret
    """
    nops = "90 " * 0xFFC + "\n"
    context = module({"f": nops + listing})
    assert placed(context, 0x1FFC).dcr == Range(0x1FFB, 0x2003)  # The jump ends where the page does.
    assert placed(context, 0x2003).tactic == "jump"
    context = module({"f": nops + listing + "2009: eb f3  # jmp 1ffe"})
    assert refused(context, 0x1FFE, errors.CROSSES_PAGE) == "0x1ffe"


# endbr64


def test_the_probe_of_an_entry_with_endbr64_goes_behind_it() -> None:
    listing = """
        1000: f3 0f 1e fa          # endbr64
        1004: 55                   # push %rbp
        1005: 48 89 e5             # mov %rsp,%rbp
        1008: 31 c0                # xor %eax,%eax
        100a: 5d                   # pop %rbp
        100b: c3                   # ret
    """
    context = module({"f": listing})
    for offset in (0, 4):
        placement = placed(context, 0x1000 + offset)
        assert (placement.address, placement.dcr) == (0x1004, Range(0x1004, 0x100A))
    assert placed(context, 0x1000).notes == ("endbr64 at 0x1000 stays in place, the probe is behind it",)


def test_a_loop_to_behind_the_endbr64_would_be_counted_as_entries() -> None:
    listing = """
        1000: f3 0f 1e fa          # endbr64
        1004: 48 83 ef 01          # sub $1,%rdi
        1008: 0f 1f 00             # nopl (%rax)
        100b: 75 f7                # jne 1004
        100d: c3                   # ret
    """
    context = module({"f": listing})
    assert refused(context, 0x1000, errors.JUMP_INTO_REGION) == "`jne 0x1004` at 0x100b leads to 0x1004"
    assert placed(context, 0x1004).address == 0x1004


def test_a_region_does_not_go_across_an_endbr64() -> None:
    listing = """
        1000: 31 c0                # xor %eax,%eax
        1002: f3 0f 1e fa          # endbr64
        1006: 31 d2                # xor %edx,%edx
        1008: 31 f6                # xor %esi,%esi
        100a: 31 ff                # xor %edi,%edi
        100c: c3                   # ret
    """
    context = module({"f": listing})
    assert "`endbr64` at 0x1002" in refused(context, 0x1000, errors.INDIRECT_JUMP)
    assert placed(context, 0x1002).address == 0x1006


# What leads into the region


LOOP = """
    1000: 31 c0                # xor %eax,%eax
    1002: 01 f8                # add %edi,%eax
    1004: ff cf                # dec %edi
    1006: 0f 1f 44 00 00       # nopl 0(%rax,%rax)
    100b: 75 f5                # jne 1002
    100d: c3                   # ret
"""


def test_a_short_branch_of_the_function() -> None:
    context = module({"f": LOOP})
    assert refused(context, 0x1000, errors.JUMP_INTO_REGION) == "`jne 0x1002` at 0x100b leads to 0x1002"
    assert placed(context, 0x1002).dcr == Range(0x1002, 0x100B)


def test_a_branch_of_the_region_itself_is_no_harm() -> None:
    listing = """
        1000: 89 f8                # mov %edi,%eax
        1002: e2 fe                # loop 1002
        1004: 01 f8                # add %edi,%eax
        1006: c3                   # ret
    """
    placement = placed(module({"f": listing}), 0x1000)
    assert placement.dcr == Range(0x1000, 0x1006)
    assert placement.has_inner_branches


def test_a_branch_past_a_prefix() -> None:
    listing = """
        1000: 74 01                # je 1003
        1002: f0 ff 07             # lock incl (%rdi)
        1005: 31 c0                # xor %eax,%eax
        1007: c3                   # ret
    """
    context = module({"f": listing})
    assert refused(context, 0x1000, errors.JUMP_INTO_REGION) == "`je 0x1003` at 0x1000 leads to 0x1003"
    assert refused(context, 0x1002, errors.JUMP_INTO_REGION)


@pytest.mark.parametrize("probes", [1, 1000])
@pytest.mark.parametrize(
    "branch",
    [
        "100b: e9 f3 ff ff ff      # jmp 1003",
        "100b: eb f6               # jmp 1003",
        "100b: 0f 84 f2 ff ff ff   # je 1003",
        "100b: 74 f6               # je 1003",
        "100b: e2 f6               # loop 1003",
        "100b: e8 f3 ff ff ff      # call 1003",
    ],
)
def test_a_branch_of_another_function(branch: str, probes: int) -> None:
    """Hand-written C libraries jump over the first instruction of a neighbour."""
    front = """
        1000: 48 89 f8             # mov %rdi,%rax
        1003: 48 83 c0 64          # add $100,%rax
        1007: c3                   # ret
    """
    behind = f"""
        1008: 48 89 f8             # mov %rdi,%rax
        {branch}
        c3                         # ret
    """
    context = module({"front": front, "behind": behind}, gap="", probes=probes)
    assert refused(context, 0x1000, errors.JUMP_INTO_REGION).endswith("leads to 0x1003")
    assert placed(context, 0x1003).dcr == Range(0x1003, 0x1008)


def test_bytes_that_only_look_like_a_branch_are_no_harm() -> None:
    # mov $0x...,%edi whose immediate holds e9 + a displacement to 0x1003
    first = "48 89 f8 48 83 c0 64 c3"  # mov %rdi,%rax; add $100,%rax; ret
    inner = (0x1003 - (0x1008 + 2 + 5)).to_bytes(4, "little", signed=True).hex()
    second = f"48 bf e9 {inner} 00 00 00 c3"  # movabs $...,%rdi; ret
    context = module({"front": first, "behind": second})
    assert placed(context, 0x1000).tactic == "region"


def test_a_branch_in_code_of_no_function_counts() -> None:
    first = "48 89 f8 48 83 c0 64 c3"
    context = module({"front": first}, gap="e9 f6 ff ff ff")  # jmp 1003, at 0x1008
    detail = refused(context, 0x1000, errors.JUMP_INTO_REGION)
    assert detail == "the bytes at 0x1009, in no known instruction, perhaps lead to 0x1003"


def test_an_address_that_code_takes() -> None:
    listing = """
        1000: 48 89 f8             # mov %rdi,%rax
        1003: 48 83 c0 64          # add $100,%rax
        1007: c3                   # ret
        1008: 48 8d 05 f4 ff ff ff # lea 1003(%rip),%rax
        100f: c3                   # ret
    """
    context = module({"f": listing})
    detail = refused(context, 0x1000, errors.JUMP_INTO_REGION)
    assert detail == "`lea 0x1003,%rax` at 0x1008 takes the address 0x1003"


def test_a_relocated_pointer_in_data() -> None:
    context = module({"f": PROLOGUE}, relative_targets=[0x1000, 0x1004])
    detail = refused(context, 0x1000, errors.JUMP_INTO_REGION)
    assert detail == "a pointer in the data leads to 0x1004"
    # Where no instruction starts, it is a pointer to something else.
    assert placed(module({"f": PROLOGUE}, relative_targets=[0x1002]), 0x1000)


@pytest.mark.parametrize("probes", [1, 1000])
def test_a_constant_in_code_at_a_fixed_address(probes: int) -> None:
    tables = {DATA + 12: [0x1004, 0]}
    context = module({"f": PROLOGUE}, tables=tables, is_pic=False, probes=probes)
    detail = refused(context, 0x1000, errors.JUMP_INTO_REGION)
    assert detail == "the four bytes at 0x400c may be the address 0x1004"
    assert placed(module({"f": PROLOGUE}, tables=tables), 0x1000)


def test_an_entry_inside_the_region() -> None:
    context = module(
        {"f": "31 c0", "g": "89 f8 01 f0 c3"}
    )  # xor %eax,%eax | mov %edi,%eax; add %esi,%eax; ret
    context.functions.parts[0] = type(context.functions.parts[0])("f", 0x1000, 0x1007)  # type: ignore[attr-defined]
    assert refused(context, 0x1000, errors.JUMP_INTO_REGION) == "g starts at 0x1002"


def test_landing_pads() -> None:
    context = module({"f": PROLOGUE}, pads={TEXT: [0x1004]})
    assert refused(context, 0x1000, errors.LANDING_PAD) == "exceptions land at 0x1004"
    context = module({"f": PROLOGUE}, pads={TEXT: None})
    assert refused(context, 0x1000, errors.LANDING_PAD) == "the function's exception table cannot be read"
    assert placed(context, 0x1008).tactic == "jump"  # No instruction starts inside.


# Computed jumps


SWITCH = """
    1000: 83 ff 03             # cmp $3,%edi
    1003: 77 0e                # ja 1013
    1005: 48 8d 15 f4 2f 00 00 # lea DATA(%rip),%rdx
    100c: 48 63 04 ba          # movslq (%rdx,%rdi,4),%rax
    1010: 48 01 d0             # add %rdx,%rax
    1013: ff e0                # jmp *%rax
    1015: 31 c0                # xor %eax,%eax
    1017: ff c0                # inc %eax
    1019: ff c0                # inc %eax
    101b: ff c0                # inc %eax
    101d: c3                   # ret
"""


def switch(labels: Sequence[int]) -> ModuleContext:
    return module({"f": SWITCH}, tables={DATA: [label - DATA for label in labels]})


def test_a_jump_table() -> None:
    context = switch([0x1015, 0x1017, 0x101D])
    assert refused(context, 0x1015, errors.JUMP_INTO_REGION) == "a jump table leads to 0x1017"
    assert placed(context, 0x1017).dcr == Range(0x1017, 0x101D)
    context = switch([0x1015])
    assert placed(context, 0x1015).dcr == Range(0x1015, 0x101B)


def test_a_jump_table_whose_first_numbers_are_not_used() -> None:
    context = module({"f": SWITCH}, tables={DATA: [0, 0, 0x1017 - DATA, 0x1015 - DATA]})
    assert refused(context, 0x1015, errors.JUMP_INTO_REGION) == "a jump table leads to 0x1017"


def test_a_jump_through_a_sum_that_is_no_table_may_lead_anywhere() -> None:
    listing = """
        1000: 48 c1 e7 02          # shl $2,%rdi
        1004: 48 8d 05 05 00 00 00 # lea 1010(%rip),%rax
        100b: 48 01 f8             # add %rdi,%rax
        100e: ff e0                # jmp *%rax
        1010: 83 c1 01             # add $1,%ecx
        1013: 90                   # nop
        1014: 83 c1 01             # add $1,%ecx
        1017: 90                   # nop
        1018: b8 01 00 00 00       # mov $1,%eax
        101d: c3                   # ret
    """
    context = module({"duff": listing})
    assert refused(context, 0x1010, errors.INDIRECT_JUMP) == "`jmp *%rax` at 0x100e"
    assert placed(context, 0x1018).tactic == "jump"


@pytest.mark.parametrize(
    ("listing", "how"),
    [
        ("48 8b 07 ff e0", "mov (%rdi),%rax; jmp *%rax"),
        ("ff 27", "jmp *(%rdi)"),
        ("ff 24 f7", "jmp *(%rdi,%rsi,8)"),
        ("ff 25 f5 2f 00 00", "jmp *DATA(%rip)"),
        ("48 89 f8 ff e0", "mov %rdi,%rax; jmp *%rax"),
        ("ff e6", "jmp *%rsi, an argument"),
        ("58 ff e0", "pop %rax; jmp *%rax"),
        ("48 8b 17 48 c1 ca 11 64 48 33 14 25 30 00 00 00 ff e2", "an encrypted pointer, as in longjmp"),
        ("48 8b 07 48 85 c0 48 0f 44 c6 ff e0", "cmove between a pointer and an argument"),
    ],
)
def test_jumps_through_pointers_need_no_proof(listing: str, how: str) -> None:
    # The last five instructions are the region: xor %eax,%eax; xor %edx,%edx; ret
    context = module({"f": f"31 c0 31 d2 31 c9 {listing}"})
    assert placed(context, 0x1000), how


@pytest.mark.parametrize(
    ("listing", "how"),
    [
        ("48 01 f7 ff e7", "add %rsi,%rdi; jmp *%rdi"),
        ("48 8d 44 37 10 ff e0", "lea 16(%rdi,%rsi),%rax; jmp *%rax"),
        ("48 83 e7 f0 ff e7", "and $-16,%rdi; jmp *%rdi"),
        ("8b 07 ff e0", "mov (%rdi),%eax; jmp *%rax"),
        ("48 01 f7 57 c3", "add %rsi,%rdi; push %rdi; ret"),
        ("48 83 fe 00 74 03 48 01 f7 ff e7", "add %rsi,%rdi on one of two ways; jmp *%rdi"),
    ],
)
def test_jumps_through_sums_are_named(listing: str, how: str) -> None:
    context = module({"f": f"31 c0 31 d2 31 c9 {listing}"})
    assert refused(context, 0x1000, errors.INDIRECT_JUMP).startswith(("`jmp ", "`ret`")), how


# Data between code


def test_a_constant_in_the_text() -> None:
    listing = """
        1000: 48 8b 05 05 00 00 00 # mov 100c(%rip),%rax
        1007: 48 01 f8             # add %rdi,%rax
        100a: eb 08                # jmp 1014
        100c: cc cc cc cc 0b 0f 0b 0f
        1014: 48 ff c0             # inc %rax
        1017: 48 ff c0             # inc %rax
        101a: c3                   # ret
    """
    context = module({"f": listing})
    # What looks like padding is data.
    assert placed(context, 0x1007).dcr == Range(0x1007, 0x100C)
    assert placed(context, 0x100A).start == 0x1007
    detail = refused(context, 0x1014, errors.NOT_DECODABLE)
    assert detail == "`mov 0x100c,%rax` at 0x1000 takes 0x100c for data, code and data are mixed"


def test_a_jump_table_in_the_text() -> None:
    listing = """
        1000: 48 8d 15 0a 00 00 00 # lea 1011(%rip),%rdx
        1007: 48 63 04 ba          # movslq (%rdx,%rdi,4),%rax
        100b: 48 01 d0             # add %rdx,%rax
        100e: ff e0                # jmp *%rax
        1010: 90                   # nop
        1011: 08 00 00 00 0a 00 00 00
        1019: 31 c0                # xor %eax,%eax
        101b: 31 d2                # xor %edx,%edx
        101d: 31 c9                # xor %ecx,%ecx
        101f: c3                   # ret
    """
    context = module({"f": listing})
    assert "a jump table stands at 0x1011" in refused(context, 0x1019, errors.NOT_DECODABLE)
    assert placed(context, 0x1000).tactic == "jump"


def test_a_branch_into_an_instruction_says_that_data_is_near() -> None:
    listing = """
        1000: eb 03                # jmp 1005
        1002: 48 b8 00             # the constant looks like the start of a movabs
        1005: b8 01 00 00 00       # mov $1,%eax
        100a: 31 d2                # xor %edx,%edx
        100c: 31 d2                # xor %edx,%edx
        100e: 31 d2                # xor %edx,%edx
        1010: c3                   # ret
    """
    context = module({"f": listing})
    assert "leads into an instruction" in refused(context, 0x100C, errors.NOT_DECODABLE)


# Code that is not probed


MUSL = "85 c0 75 40                # test %eax,%eax; jne 0x1046"
GLIBC = "f6 07 04 0f 85 36 00 00 00 # testb $4,(%rdi); jne 0x1041"


@pytest.mark.parametrize("check", [MUSL, GLIBC])
@pytest.mark.parametrize("name", ["__syscall_cp_asm", "sub_1000"])
def test_cancellable_system_calls(check: str, name: str) -> None:
    listing = f"""
        8b 07                      # mov (%rdi),%eax
        {check}
        49 89 fb                   # mov %rdi,%r11
        48 89 f0                   # mov %rsi,%rax
        48 89 d7                   # mov %rdx,%rdi
        48 89 ce                   # mov %rcx,%rsi
        4c 89 c2                   # mov %r8,%rdx
        4d 89 ca                   # mov %r9,%r10
        4c 8b 44 24 08             # mov 8(%rsp),%r8
        4c 8b 4c 24 10             # mov 16(%rsp),%r9
        4c 89 5c 24 08             # mov %r11,8(%rsp)
        0f 05                      # syscall
        c3                         # ret
    """
    behind = " ".join(["90"] * 32) + " c3"
    context = module({name: listing, "next": behind})
    for address in (0x1000, 0x1002):
        refused(context, address, errors.CANCELLATION)
    assert [each.what for each in blacklist(context)] == ["the vsyscall page", "a cancellable system call"]


def test_a_cancellable_system_call_of_another_shape_is_known_by_its_name() -> None:
    context = module({"__syscall_cancel_arch": PROLOGUE, "other": OTHER})
    assert "__syscall_cancel_arch" in refused(context, 0x1000, errors.CANCELLATION)


def test_the_signal_return_path() -> None:
    listing = """
        1000: 48 c7 c0 0f 00 00 00 # mov $15,%rax
        1007: 0f 05                # syscall
        1009: 0f 1f 00             # nopl (%rax)
        100c: b8 01 00 00 00       # mov $1,%eax
        1011: c3                   # ret
    """
    context = module({"restore": listing})
    for address in (0x1000, 0x1007):
        assert "the signal return path" in refused(context, address, errors.BLACKLISTED)
    assert [each.what for each in blacklist(context)] == ["the vsyscall page", "the signal return path"]
    assert placed(context, 0x100C).tactic == "jump"


@pytest.mark.parametrize(
    ("number", "name"), [(56, "clone"), (58, "vfork"), (435, "clone3"), (15, "rt_sigreturn")]
)
def test_system_calls_whose_child_starts_behind_them(number: int, name: str) -> None:
    constant = number.to_bytes(4, "little").hex()
    context = module({"f": f"b8 {constant} 31 d2 0f 05 48 85 c0 48 85 c0 c3"})
    # mov $number,%eax; xor %edx,%edx; syscall; test %rax,%rax; test %rax,%rax; ret
    assert refused(context, 0x1007, errors.BLACKLISTED) == f"`syscall` at 0x1007 is the system call {name}"
    assert placed(context, 0x1000).tactic == "jump"


def test_system_calls_that_may_move() -> None:
    # mov $39 (getpid),%eax; syscall; test %rax,%rax; ret
    assert placed(module({"f": "b8 27 00 00 00 0f 05 48 85 c0 c3"}), 0x1005)
    # mov %rdi,%rax; syscall: the number is not known, as in syscall()
    assert placed(module({"f": "48 89 f8 0f 05 48 85 c0 c3"}), 0x1003)


def test_modules_that_are_no_private_file() -> None:
    context = module({"f": PROLOGUE})
    context.is_file = False
    assert "no private mapping" in refused(context, 0x1000, errors.BLACKLISTED)
    context = module({"f": PROLOGUE})
    context.is_shared = True
    assert refused(context, 0x1000, errors.SHARED_TEXT) == "module"


def test_areas_of_ours() -> None:
    context = module({"f": PROLOGUE})
    context.bias = 0x10_0000
    context.batch.forbidden = [(Range(0x10_1004, 0x10_1005), "Sidestep's own code")]
    assert refused(context, 0x10_1000, errors.BLACKLISTED) == "Sidestep's own code at 0x101004-0x101005"
    assert placed(context, 0x10_1005)


def test_calls_do_not_move_where_a_thread_has_a_shadow_stack() -> None:
    # call *%rax; test %eax,%eax behind three bytes of mov
    context = module({"f": "48 89 fb ff d0 85 c0 85 c0 85 c0 c3"})
    assert placed(context, 0x1000)
    context.batch.shadow_stacks = True
    assert "`call *%rax` at 0x1003" in refused(context, 0x1000, errors.CALL_IN_REGION)
    assert placed(context, 0x1005)


# Faults and foreign changes


def test_instructions_that_may_fault() -> None:
    listing = "48 8b 07 48 8b 00 c3 90 90 90"  # mov (%rdi),%rax; mov (%rax),%rax; ret
    context = module({"f": listing})
    assert placed(context, 0x1000)
    context.batch.fault_rule = errors.MAY_FAULT
    assert refused(context, 0x1000, errors.MAY_FAULT) == "`mov (%rdi),%rax` at 0x1000"
    context = module({"f": PROLOGUE})
    context.batch.fault_rule = errors.MAY_FAULT
    assert placed(context, 0x1000)


@pytest.mark.parametrize(
    ("offset", "byte", "reason"),
    [
        (0, 0xCC, errors.FOREIGN_BREAKPOINT),
        (4, 0xCC, errors.FOREIGN_BREAKPOINT),
        (1, 0x90, errors.FOREIGN_BYTES),
    ],
)
def test_bytes_in_memory_that_are_not_those_of_the_file(offset: int, byte: int, reason: Reason) -> None:
    context = module({"f": PROLOGUE})
    context.bias = 0x5000
    memory = bytearray(context.bytes_at(0x1000, 0x1010))
    context.memory = lambda address, size: bytes(memory[address - 0x6000 :][:size])
    assert placed(context, 0x6000)
    memory[offset] = byte
    assert f"{byte:#04x} in memory at {0x1000 + offset:#x}" in refused(context, 0x6000, reason)
    assert placed(context, 0x6008)


def test_memory_that_cannot_be_read() -> None:
    context = module({"f": PROLOGUE})
    context.memory = lambda address, size: b""
    assert refused(context, 0x1000, errors.FOREIGN_BYTES) == "the memory at 0x1000 cannot be read"


def test_verdicts_come_in_the_order_of_the_addresses() -> None:
    context = module({"f": PROLOGUE})
    addresses = [0x1008, 0x1003, 0x1000]
    answers = list(verdicts(context, addresses))
    assert [isinstance(answer, Placement) for answer in answers] == [True, False, True]
