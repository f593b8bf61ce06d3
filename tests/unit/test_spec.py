"""The frame of a probe text: kind, event, order of the parts; its canonical text; the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.carets import refused
from sidestep.errors import ProbeSyntaxError
from sidestep.spec import (
    GRAMMAR,
    Argument,
    Comparison,
    FetchArgument,
    FetchType,
    Name,
    Number,
    ProbeSpec,
    ReturnValue,
    Where,
    format_spec,
    parse,
)

DOCS = Path(__file__).parents[2] / "docs" / "probes.md"
U32 = FetchType("u", 32)


def test_the_smallest_probe() -> None:
    assert parse("malloc") == ProbeSpec("p", None, None, None, Where(None, "malloc"))


def test_every_part() -> None:
    text = "r20:memory/alloc libc:malloc+0 size=$arg1:u32 $retval if size > 4096"
    assert parse(text) == ProbeSpec(
        "r",
        20,
        "memory",
        "alloc",
        Where("libc", "malloc"),
        (FetchArgument("size", Argument(1), U32), FetchArgument("arg2", ReturnValue())),
        Comparison(">", Name(0, "size", U32), Number(4096)),
    )


def test_the_text_is_kept_as_written() -> None:
    assert parse(" p:  malloc ").text == " p:  malloc "


@pytest.mark.parametrize(
    ("text", "event", "symbol"),
    [
        ("p:big malloc", "big", "malloc"),
        ("big malloc", "big", "malloc"),
        ("p:malloc", None, "malloc"),
        ("p:malloc %di", None, "malloc"),
        ("p:malloc x=%di", None, "malloc"),
        ("p:malloc $arg1", None, "malloc"),
        ("p:malloc @environ", None, "malloc"),
        ("p:malloc +8(%di)", None, "malloc"),
        ("p:malloc -8(%di)", None, "malloc"),
        ("p:malloc \\5", None, "malloc"),
        ("p:malloc if %di", None, "malloc"),
        ("p:malloc if(%di)", None, "malloc"),
        ("p:ev if_nametoindex", "ev", "if_nametoindex"),
        ("p:ev malloc %di", "ev", "malloc"),
        ('p:ev "malloc" %di', "ev", "malloc"),
        ("p:ev operator=(A const&) %di", "ev", "operator=(A const&)"),
        ("p:ev operator==(A, A)", "ev", "operator==(A, A)"),
        ("p: malloc", None, "malloc"),
        ("p", None, "p"),
        ("p:p", None, "p"),
        ("p:p free", "p", "free"),
        ("if", None, "if"),
        ("p:operator if (%di)", None, "operator"),
        ("p:operator malloc if (%di)", "operator", "malloc"),
        ("p:malloc operator=%di", None, "malloc"),
        ("p:::malloc", None, "::malloc"),
        ("::malloc", None, "::malloc"),
    ],
)
def test_event_or_where(text: str, event: str | None, symbol: str) -> None:
    spec = parse(text)
    assert (spec.event, spec.where.symbol) == (event, symbol)


@pytest.mark.parametrize(
    ("text", "kind", "maxactive"),
    [
        ("p:f", "p", None),
        ("r:f", "r", None),
        ("r12:f", "r", 12),
        ("r0:f", "r", None),
        ("p f", "p", None),
        ("r f", "r", None),
        ("r12 f $retval", "r", 12),
        ("r ev f $retval", "r", None),
        ("r %di", "p", None),
        ("r::f", "p", None),
    ],
)
def test_kind(text: str, kind: str, maxactive: int | None) -> None:
    spec = parse(text)
    assert (spec.kind, spec.maxactive) == (kind, maxactive)


def test_white_space_is_a_blank() -> None:
    assert parse("p:f\n\t%di\tif %di\n> 4") == parse("p:f %di if %di > 4")


def test_errors_of_the_frame() -> None:
    refused("\n^", "the place to probe is missing")
    refused("p:\n  ^", "the place to probe is missing", "libc:malloc")
    refused("size=$arg1\n^", "the place to probe is missing before the fetch arguments")
    refused("p:%di\n  ^", "the place to probe is missing before the fetch arguments")
    refused("p10:f\n ^", "only a return probe has a maximum")
    refused("r65537:f\n ^", "out of range for the maximum of active calls", "0 to 65536")
    refused("p:9/ev f\n  ^", "is no event name")
    refused("p:libc:malloc siez\n              ^", "expected a fetch argument, not 'siez'", "NAME=")
    refused("libc:malloc siez = %di\n            ^", "expected a fetch argument", "siez=")
    refused(f"p:{'e' * 65} f\n  ^", "at most 64 characters")
    refused("r:f+4\n    ^", "a return probe belongs to the start of a function")


def test_unprintable_text_is_refused_and_not_repeated() -> None:
    with pytest.raises(ProbeSyntaxError) as caught:
        parse("p:f\x1b[31m %di")
    assert caught.value.column == 3
    assert "\x1b" not in str(caught.value)
    assert "U+001B" in caught.value.message


def test_the_text_has_an_end() -> None:
    with pytest.raises(ProbeSyntaxError, match="at most 16384 characters"):
        parse("f" * 20000)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("malloc", "p:malloc"),
        ("r0:malloc+0 $retval:x64", "r:malloc arg1=$retval"),
        ("r12 grp/ev libc:malloc", "r12:grp/ev libc:malloc"),
        ("libc:malloc+16 %rdi:u8", "p:libc:malloc+0x10 arg1=%di:u8"),
        ('"ns::f(int, char)"', "p:ns::f(int, char)"),
        ('"void f<int>(int)"+4', 'p:"void f<int>(int)+0x4"'),
        ('"f-4"', 'p:"f-4"'),
        ('p:ev "if"', 'p:ev "if"'),
        ("f x=+0x8(-8(%di)):string", "p:f x=+8(-8(%di)):string"),
        ("f x=$arg1:string", "p:f x=+0($arg1):string"),
        ("f @libc:environ+0x8:u8[2]", "p:f arg1=@libc:environ+8:u8[2]"),
        ('f @"libc:environ"', "p:f arg1=@libc:environ"),
        ('f @"libc:u32"', 'p:f arg1=@"libc:u32"'),
        ("f a=%di if a&&(a||a)&&!(a==1)", "p:f a=%di if a && (a || a) && !(a == 1)"),
        ("f a=%di if (a&1)==a-1", "p:f a=%di if (a & 1) == (a - 1)"),
    ],
)
def test_canonical_text(text: str, canonical: str) -> None:
    assert format_spec(parse(text)) == canonical
    assert parse(canonical) == parse(text)


def test_later_errors_point_into_the_text() -> None:
    spec = parse("p:f size=@nosuch")
    error = spec.error(spec.arguments[0].fetch, "no variable has that name", "hint")
    assert str(error) == "no variable has that name (hint)\n  p:f size=@nosuch\n           ^"


def documented(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCS.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("text", [line for block in documented("probe") for line in block.splitlines()])
def test_documented_probes(text: str) -> None:
    assert parse(format_spec(parse(text))) == parse(text)


@pytest.mark.parametrize("block", documented("error"))
def test_documented_errors(block: str) -> None:
    text = block.splitlines()[1].strip()
    with pytest.raises(ProbeSyntaxError) as caught:
        parse(text)
    assert str(caught.value) == block.rstrip("\n")


def test_the_short_grammar_fits_a_terminal() -> None:
    assert max(map(len, GRAMMAR.splitlines())) <= 90
