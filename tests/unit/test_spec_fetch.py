"""Fetch arguments in a probe text, and their types."""

from __future__ import annotations

import pytest

from harness.carets import refused
from sidestep.spec import (
    Argument,
    BitField,
    Comm,
    Dereference,
    Fetch,
    FetchArgument,
    FetchType,
    Immediate,
    Memory,
    Register,
    ReturnValue,
    StackPointer,
    StackSlot,
    SymbolMemory,
    fetches,
    parse,
)

X64 = FetchType("x", 64)
U32 = FetchType("u", 32)
STRING = FetchType("string", 8)


def fetch(text: str, kind: str = "p") -> Fetch:
    return parse(f"{kind}:f {text}").arguments[0].fetch


def fetch_type(text: str) -> FetchType:
    return parse(f"f +0(%di):{text}").arguments[0].type


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%di", Register("di")),
        ("%rdi", Register("di")),
        ("%r8", Register("r8")),
        ("%rip", Register("ip")),
        ("%flags", Register("flags")),
        ("%rflags", Register("flags")),
        ("$arg1", Argument(1)),
        ("$arg12", Argument(12)),
        ("$stack", StackPointer()),
        ("$stack0", StackSlot(0)),
        ("$stack17", StackSlot(17)),
        ("$comm", Comm()),
        ("@0x4040", Memory(0x4040)),
        ("@4040", Memory(4040)),
        ("@environ", SymbolMemory(None, "environ")),
        ("@environ+0x10", SymbolMemory(None, "environ", 16)),
        ("@environ-8", SymbolMemory(None, "environ", -8)),
        ("@libc:environ+8", SymbolMemory("libc", "environ", 8)),
        ("@libstdc++:std::cout", SymbolMemory("libstdc++", "std::cout")),
        ("@ns::counter", SymbolMemory(None, "ns::counter")),
        ("@environ@GLIBC_2.2.5", SymbolMemory(None, "environ@GLIBC_2.2.5")),
        ('@"app:ns::v<int, char>"-4', SymbolMemory("app", "ns::v<int, char>", -4)),
        ("\\5", Immediate(5)),
        ("\\-5", Immediate(-5)),
        ("\\0xffffffffffffffff", Immediate(2**64 - 1)),
        ("+8(%di)", Dereference(8, Register("di"))),
        ("-0x8(%di)", Dereference(-8, Register("di"))),
        ("+u8(%di)", Dereference(8, Register("di"), user=True)),
        ("+0(-16(@environ))", Dereference(0, Dereference(-16, SymbolMemory(None, "environ")))),
        ("+0(\\0x4040)", Dereference(0, Immediate(0x4040))),
    ],
)
def test_forms(text: str, expected: Fetch) -> None:
    assert fetch(text) == expected
    assert parse(f"f x={text}").arguments[0].name == "x"


def test_return_value() -> None:
    assert fetch("$retval", "r") == ReturnValue()
    assert fetch("$arg1", "r") == Argument(1)


def test_names_are_given_by_position() -> None:
    names = [argument.name for argument in parse("f %di x=%si %dx").arguments]
    assert names == ["arg1", "x", "arg3"]


def test_columns() -> None:
    first, second = parse("f x=%di:u8 +8(+16(@environ))").arguments
    assert (first.column, first.fetch.column, first.type.column) == (2, 4, 8)
    assert [node.column for node in fetches(parse("f x=%di:u8 +8(+16(@environ))"))] == [4, 11, 14, 18]
    assert second.column == 11


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((f"{kind}{bits}", FetchType(kind, bits)) for kind in ("u", "s", "x") for bits in (8, 16, 32, 64)),
        ("string", STRING),
        ("ustring", STRING),
        ("symbol", FetchType("symbol", 64)),
        ("u8[16]", FetchType("u", 8, 16)),
        ("symbol[3]", FetchType("symbol", 64, 3)),
        ("b4@8/32", FetchType("u", 32, None, BitField(4, 8, 32))),
        ("b64@0/64", FetchType("u", 64, None, BitField(64, 0, 64))),
    ],
)
def test_types(text: str, expected: FetchType) -> None:
    assert fetch_type(text) == expected


def test_default_types() -> None:
    assert [argument.type for argument in parse("f %di $comm").arguments] == [X64, STRING]


@pytest.mark.parametrize("text", ["%di", "$arg1", "$stack2", "\\0x4040"])
def test_a_string_is_read_where_the_value_points_to(text: str) -> None:
    inner = fetch(text)
    assert fetch(f"{text}:string") == Dereference(0, inner)


@pytest.mark.parametrize("text", ["+8(%di)", "@environ", "@0x4040", "$comm"])
def test_a_string_in_memory_is_read_there(text: str) -> None:
    assert fetch(f"{text}:string") == fetch(text)


def test_a_colon_before_a_type_or_a_symbol() -> None:
    assert parse("f @counter:u32").arguments == (FetchArgument("arg1", SymbolMemory(None, "counter"), U32),)
    assert fetch("@libs2n:s2n_init") == SymbolMemory("libs2n", "s2n_init")
    assert fetch("@sym+8:u32") == SymbolMemory(None, "sym", 8)
    assert fetch('@"libapp:u32"') == SymbolMemory("libapp", "u32")
    assert fetch("@ns::u32") == SymbolMemory(None, "ns::u32")


def test_value_ranges() -> None:
    assert (fetch_type("s16").minimum, fetch_type("s16").maximum) == (-32768, 32767)
    assert (fetch_type("b4@8/32").minimum, fetch_type("b4@8/32").maximum) == (0, 15)
    assert fetch_type("u16[3]").element_size == 2


def test_errors_of_registers() -> None:
    refused("f %rdx2\n  ^", "unknown register %rdx2", "Did you mean %rdx?")
    refused("f %RDI\n  ^", "unknown register %RDI", "Did you mean %rdi?")
    refused("f %edi\n  ^", "%edi is a part of a register", "%di:x32")
    refused("f %r9d\n  ^", "%r9d is a part of a register", "%r9:x32")
    refused("f %ah\n  ^", "%ah is a part of a register", "%ax:b8@8/16")
    refused("f %xmm0\n  ^", "%xmm0 cannot be fetched")
    refused("f %qqq\n  ^", "unknown register %qqq", "one of %ax")
    refused("f %\n  ^", "a register name is missing")
    refused("f x=rdi\n    ^", "expected a fetch argument, not 'rdi'", "Did you mean %rdi?")


def test_errors_of_variables() -> None:
    refused("f $arg0\n  ^", "arguments are counted from 1", "$arg1")
    refused("f $arg129\n      ^", "out of range", "1 to 128")
    refused("f $stack65536\n        ^", "out of range")
    refused("f $stack01\n        ^", "'01' is not a number", "write 1")
    refused("f $ret\n  ^", "unknown variable $ret", "Did you mean $retval?")
    refused("f $com\n  ^", "unknown variable $com", "Did you mean $comm?")
    refused("f $di\n  ^", "unknown variable $di", "Did you mean %di?")
    refused("f $args\n  ^", "unknown variable $args", "$arg1, $arg2")
    refused("f $\n  ^", "a name is missing", "$argN")
    refused("f $retval\n  ^", "only a return probe has $retval", "r:")
    refused("f +8($retval)\n     ^", "only a return probe has $retval")
    refused("f+4 $arg1\n    ^", "$arg1 is known at the start of a function only", "%di")
    refused("f x=arg1\n    ^", "expected a fetch argument, not 'arg1'", "Did you mean $arg1?")


def test_errors_of_memory() -> None:
    refused("f @\n   ^", "expected an address or the name of a variable")
    refused("f @0x10000000000000000\n   ^", "out of range for an address")
    refused("f @environ+\n           ^", "expected an offset")
    refused("f @environ+2147483648\n           ^", "out of range for an offset")
    refused("f @*\n   ^", "expected an address")
    refused('f @"ns::f\n   ^', "the quote is not closed")
    refused('f @"libc:"\n         ^', "a variable name is missing")


def test_errors_of_dereferences() -> None:
    refused("f +(%di)\n   ^", "an offset is missing", "+0(")
    refused("f +8%di\n    ^", "expected ( behind the offset", "+8(%di)")
    refused("f +8(di)\n     ^", "expected a fetch argument", "Did you mean %di?")
    refused("f +8(%di\n    ^", "this parenthesis is not closed")
    refused("f +8(%di,%si,4)\n        ^", "expected )")
    refused("f +8(%di:u32)\n        ^", "a type stands behind the last parenthesis", "+8(%di):u32")
    refused("f +0($comm)\n     ^", "$comm is no address")
    refused("f +0x80000000(%di)\n   ^", "out of range for an offset")
    refused(f"f {'+0(' * 17}%di{')' * 17}\n{' ' * (2 + 17 * 3)}^", "more than 16 dereferences")


def test_errors_of_constants() -> None:
    refused('f \\"text"\n   ^', "a constant must be a number")
    refused("f \\x\n   ^", "expected a constant, not 'x'")
    refused("f \\18446744073709551616\n   ^", "out of range for a constant")
    refused(f"f \\{'9' * 5000}\n   ^", "out of range for a constant")
    refused("f \\12ab\n   ^", "'12ab' is not a number")


def test_errors_of_types() -> None:
    refused("f %di:\n      ^", "a type is missing", ":u32")
    refused("f %di:u12\n      ^", "unknown type 'u12'", "8, 16, 32 and 64")
    refused("f %di:int\n      ^", "unknown type 'int'", "Did you mean s32?")
    refused("f %di:U32\n      ^", "unknown type 'U32'", "Did you mean u32?")
    refused("f %di:char*\n      ^", "unknown type 'char*'", "Did you mean string?")
    refused("f %di:strng\n      ^", "unknown type 'strng'", "Did you mean string?")
    refused("f @counter:int\n           ^", "unknown type 'int'")
    refused("f %di:u8[16]\n      ^", "only memory can be an array", "+0(%di):u8[16]")
    refused("f +0(%di):u8[]\n          ^", "unknown type 'u8[]'", "u8[N]")
    refused("f +0(%di):u8[0]\n             ^", "out of range for the length of an array", "1 to 256")
    refused("f +0(%di):u8[257]\n             ^", "out of range for the length of an array")
    refused("f +0(%di):string[2]\n                ^", "an array of strings is not supported")
    refused("f %di:b4\n      ^", "unknown type 'b4'", "b4@8/32")
    refused("f %di:b0@0/32\n       ^", "out of range for a bit field")
    refused("f %di:b4@29/32\n      ^", "4 bits from bit 29 are more than 32")
    refused("f +0(%di):b4@0/32[2]\n                 ^", "an array of bit fields is not supported")
    refused("f $comm:u8\n        ^", "$comm is a string")


def test_errors_of_arguments() -> None:
    refused("f a=%di a=%si\n        ^", "two arguments are named 'a'")
    refused("f arg2=%di %si\n           ^", "two arguments are named 'arg2'", "NAME=")
    refused("f %di, %si\n     ^", "cannot go on with ','", "blanks")
    refused("f %di b-c=%di\n      ^", "'b-c' cannot be a name")
    refused("f x=\n    ^", "expected a fetch argument, but the text ends here")
    refused("f size = %di\n       ^", "no blank can stand before =")
    many = " ".join(["%di"] * 129)
    refused(f"f {many}\n{' ' * (2 + 4 * 128)}^", "at most 128 fetch arguments")
    refused(f"f {'n' * 65}=%di\n  ^", "at most 64 characters")
