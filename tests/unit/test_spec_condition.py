"""Conditions in a probe text."""

from __future__ import annotations

import pytest

from harness.carets import refused
from sidestep.errors import ProbeSyntaxError
from sidestep.spec import (
    Argument,
    Arithmetic,
    Comparison,
    Condition,
    Dereference,
    FetchOperand,
    FetchType,
    Logical,
    Name,
    Not,
    Number,
    Register,
    SymbolMemory,
    fetches,
    operands,
    parse,
)

X64 = FetchType("x", 64)
U32 = FetchType("u", 32)
S32 = FetchType("s", 32)
A = Name(0, "a", X64)
B = Name(1, "b", X64)
S = Name(2, "s", S32)


def condition(text: str, arguments: str = "a=%di b=%si s=%dx:s32") -> Condition:
    result = parse(f"f {arguments} if {text}").condition
    assert result is not None
    return result


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", A),
        ("!a", Not(A)),
        ("a == 1", Comparison("==", A, Number(1))),
        ("a==-1", Comparison("==", A, Number(-1))),
        ("a != 0x10", Comparison("!=", A, Number(16))),
        ("a & 2", Arithmetic("&", A, Number(2))),
        ("(a & 2) == 2", Comparison("==", Arithmetic("&", A, Number(2)), Number(2))),
        ("a & 2 + 1", Arithmetic("&", A, Arithmetic("+", Number(2), Number(1)))),
        ("a - b - 1", Arithmetic("-", Arithmetic("-", A, B), Number(1))),
        ("a - -1", Arithmetic("-", A, Number(-1))),
        ("a -1", Arithmetic("-", A, Number(1))),
        ("a << 2 + 1", Arithmetic("<<", A, Arithmetic("+", Number(2), Number(1)))),
        ("a | b ^ a & b", Arithmetic("|", A, Arithmetic("^", B, Arithmetic("&", A, B)))),
        ("a < b << 2", Comparison("<", A, Arithmetic("<<", B, Number(2)))),
        ("a && b || s", Logical("||", (Logical("&&", (A, B)), S))),
        ("a && (b || s)", Logical("&&", (A, Logical("||", (B, S))))),
        ("a && b && s", Logical("&&", (A, B, S))),
        ("(a && b) && s", Logical("&&", (A, B, S))),
        ("!(a == 1) && !!b", Logical("&&", (Not(Comparison("==", A, Number(1))), Not(Not(B))))),
        ("%di > 5", Comparison(">", FetchOperand(Register("di")), Number(5))),
        ("$arg2:s32 < 0", Comparison("<", FetchOperand(Argument(2), S32), Number(0))),
        ("+8(%di):u32&1", Arithmetic("&", FetchOperand(Dereference(8, Register("di")), U32), Number(1))),
        ("-8(%di)", FetchOperand(Dereference(-8, Register("di")))),
        ("a + +8(%di)", Arithmetic("+", A, FetchOperand(Dereference(8, Register("di"))))),
        ("@environ-8", FetchOperand(SymbolMemory(None, "environ", -8))),
        ("@environ - 8", Arithmetic("-", FetchOperand(SymbolMemory(None, "environ")), Number(8))),
        ("a >= 0x8000000000000000", Comparison(">=", A, Number(2**63))),
    ],
)
def test_forms(text: str, expected: Condition) -> None:
    assert condition(text) == expected


def test_signedness() -> None:
    def comparison(text: str) -> Comparison:
        result = condition(text)
        assert isinstance(result, Comparison)
        return result

    assert not comparison("a < b").signed
    assert comparison("s < 0").signed
    assert comparison("a < s").signed
    assert comparison("a + s < b").signed
    assert not comparison("a >> s < b").signed
    assert comparison("s >> a < b").signed
    assert comparison("a == -1").signed


def test_operands_and_fetches() -> None:
    spec = parse("f a=%di if (a & 1) == 0 && !+8(@environ)")
    assert spec.condition is not None
    assert list(operands(spec.condition)) == [
        A,
        Number(1),
        Number(0),
        FetchOperand(Dereference(8, SymbolMemory(None, "environ"))),
    ]
    assert SymbolMemory(None, "environ") in list(fetches(spec))


def test_columns() -> None:
    result = parse("f a=%di if a + 1 == %si").condition
    assert isinstance(result, Comparison)
    assert (result.column, result.left.column, result.right.column) == (17, 13, 20)


def test_errors() -> None:
    refused("f if\n    ^", "expected a value, but the text ends here")
    refused("f if %di >\n          ^", "expected a value, but the text ends here")
    refused("f size=%di if sze > 4\n              ^", "no argument 'sze'", "Did you mean size?")
    refused("f a=%di b=%si if count\n                 ^", "no argument 'count'", "its arguments are a, b")
    refused("f if count\n     ^", "no argument 'count'", "count=$arg1")
    refused("f if rdi\n     ^", "no argument 'rdi'", "Did you mean %rdi?")
    refused("f a=%di if not a\n           ^", "no argument 'not'", "Did you mean !?")
    refused("f a=%di if a and a\n             ^", "expected an operator", "Did you mean &&?")
    refused("f a=%di if a = 4\n             ^", "expected an operator", "Did you mean ==?")
    refused("f a=%di if a * 4\n             ^", "expected an operator", "multiplication")
    refused("f a=%di if a %si\n             ^", "expected an operator")
    refused("f a=%di if a +8(%si)\n               ^", "expected an operator", "+OFFSET(FETCH)")
    refused("f a=%di if a)\n            ^", "no opening one")
    refused("f a=%di if ((a)\n           ^", "not closed")
    refused("f a=%di if (a 4)\n              ^", "expected an operator")
    refused("f a=%di if a:u8\n            ^", "a name takes no type")
    refused("f if $retval\n     ^", "only a return probe has $retval")


def test_precedence_that_surprises_is_refused() -> None:
    refused("f a=%di if a & 2 == 2\n                 ^", "== binds tighter than &", "part with &")
    refused("f a=%di if 2 == a & 2\n                  ^", "== binds tighter than &", "part with &")
    refused("f a=%di if !a & 2\n           ^", "! binds tighter than &")
    refused("f a=%di if 1 < a < 5\n                 ^", "a comparison has two sides", "&&")
    refused("f a=%di if (a == 1) + 1\n                    ^", "+ needs numbers")
    refused("f a=%di if (a && a) == 1\n              ^", "== needs numbers")


def test_what_no_value_can_change_is_refused() -> None:
    refused("f a=%di if a < 0\n             ^", "a < 0 is never true", "signed types")
    refused("f a=%di if 0 > a\n             ^", "0 > a is never true", "signed types")
    refused("f a=%di if a >= 0\n             ^", "a >= 0 is always true")
    refused("f a=%di if a > -1\n             ^", "a > -1 is always true")
    refused("f a=%di:u8 if a == 256\n                ^", "a == 256 is never true", "u8 is 0 to 255")
    refused("f a=%di:u32 if a != -1\n                 ^", "a != -1 is always true", "signed types")
    refused("f a=%di:b4@0/8 if a > 15\n                    ^", "a > 15 is never true")
    refused("f a=%di:s64 if a < 0x8000000000000000\n                 ^", "is always true")
    refused("f if %di + 1 < 0\n             ^", "is never true")


def test_strings_and_arrays_are_refused() -> None:
    refused("f a=+0(%di):string if a == 4\n                      ^", "a is a string")
    refused("f if $comm\n     ^", "$comm is a string")
    refused('f a=%di if a == "x"\n                ^', "cannot compare strings")
    refused("f a=+0(%di):u8[4] if a == 4\n                     ^", "a is an array", "without [4]")


def test_shifts() -> None:
    refused("f a=%di if a << 64\n                ^", "0 to 63 bits")
    refused("f a=%di if a >> -1\n                ^", "0 to 63 bits")


def test_nesting_has_an_end() -> None:
    assert condition("(" * 32 + "a" + ")" * 32) == A
    with pytest.raises(ProbeSyntaxError, match="more than 32 levels"):
        condition("(" * 33 + "a" + ")" * 33)
    with pytest.raises(ProbeSyntaxError, match="more than 32 levels"):
        condition("!" * 33 + "a")
    with pytest.raises(ProbeSyntaxError, match="more than 32 levels"):
        condition("+".join(["a"] * 34))
    assert len(list(operands(condition(" || ".join(["a == 1"] * 100))))) == 200
