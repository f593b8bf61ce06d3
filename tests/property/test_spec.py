"""The probe text grammar: every tree survives its text, and no text does worse than a ProbeSyntaxError."""

from __future__ import annotations

from collections.abc import Callable
from typing import overload

from hypothesis import example, given, settings
from hypothesis import strategies as st

from sidestep.errors import ProbeSyntaxError
from sidestep.spec import (
    Argument,
    Arithmetic,
    BitField,
    Comm,
    Comparison,
    Condition,
    Dereference,
    Fetch,
    FetchArgument,
    FetchOperand,
    FetchType,
    Immediate,
    Logical,
    Memory,
    Name,
    Not,
    Number,
    Operand,
    ProbeSpec,
    Register,
    ReturnValue,
    StackPointer,
    StackSlot,
    SymbolMemory,
    Where,
    fetches,
    format_spec,
    operands,
    parse,
    parse_where,
)

REGISTERS = ["ax", "bx", "cx", "dx", "si", "di", "bp", "sp", "r8", "r15", "ip", "flags"]
X64 = FetchType("x", 64)
STRING = FetchType("string", 8)
BITS = st.sampled_from([8, 16, 32, 64])
NUMBERS = st.integers(-(1 << 63), (1 << 64) - 1)
OFFSETS = st.integers(-(1 << 31), (1 << 31) - 1)
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
WORDS = st.sampled_from(["if", "p", "r", "r2", "u8", "string", "operator", "arg1", "const", "char"]) | NAMES

# Anything printable that does not itself look like another part of WHERE.
HOSTILE_NAMES = st.text(st.sampled_from('ab_:<>()[]{}*?"\\ ,&~=-+^|$@%.#é'), min_size=1, max_size=12)
CPLUSPLUS_NAMES = st.sampled_from(
    [
        "ns::f(int, char)",
        "void ns::sort<int>(int*, int*)",
        "std::ostream::operator<<(int)",
        "operator< <int>(A<int> const&, int)",
        "A::operator bool() const",
        'operator"" _km(long double)',
        "f[abi:cxx11](int) [clone .cold]",
        "<alloc::vec::Vec<T> as core::ops::Drop>::drop",
        "main::{lambda(int)#1}::operator()(int) const",
    ]
)
MODULES = st.sampled_from(
    ["libc", "libstdc++.so.6", "lib[cm]*", "[vdso]", "my lib", "a-b.so", "p", "r2", "u8"]
)


def is_symbol(text: str) -> bool:
    """Whether WHERE can say this symbol (whatever the quotes): parsing it alone gives it back."""
    try:
        return parse_where(f"m:{text}") == Where("m", text) and parse_where(text) == Where(None, text)
    except ProbeSyntaxError:
        return False


symbols = WORDS | CPLUSPLUS_NAMES | HOSTILE_NAMES.filter(is_symbol)
addresses = st.integers(0, (1 << 64) - 1)
wheres = st.builds(Where, st.none() | MODULES, symbols, st.just(0) | addresses) | st.builds(
    Where, st.none() | MODULES, st.none(), addresses
)

data_symbols = st.builds(
    SymbolMemory,
    st.none() | st.sampled_from(["libc", "libstdc++.so.6", "a-b.so", "u8", "my lib"]),
    WORDS | st.sampled_from(["ns::counter", "environ@GLIBC_2.2.5", "ns::v<int, char>", 'a"b\\c', "~a", "é"]),
    OFFSETS,
)
leaves: st.SearchStrategy[Fetch] = st.one_of(
    st.builds(Register, st.sampled_from(REGISTERS)),
    st.builds(StackSlot, st.integers(0, 65535)),
    st.builds(StackPointer),
    st.builds(Immediate, NUMBERS),
    st.builds(Memory, addresses),
    data_symbols,
)
values_at_entry = leaves | st.builds(Argument, st.integers(1, 128))
values_at_return = values_at_entry | st.builds(ReturnValue)


@st.composite
def bit_fields(draw: st.DrawFn) -> FetchType:
    container = draw(BITS)
    width = draw(st.integers(1, container))
    return FetchType(
        "u", container, None, BitField(width, draw(st.integers(0, container - width)), container)
    )


numbers = st.builds(FetchType, st.sampled_from(["u", "s", "x"]), BITS)
number_types = numbers | bit_fields() | st.just(FetchType("symbol", 64))
array_types = st.builds(FetchType, st.sampled_from(["u", "s", "x"]), BITS, st.integers(1, 256)) | st.builds(
    FetchType, st.just("symbol"), st.just(64), st.integers(1, 256)
)
memory_types = number_types | array_types | st.just(STRING)


@st.composite
def typed_fetches(draw: st.DrawFn, values: st.SearchStrategy[Fetch]) -> tuple[Fetch, FetchType]:
    fetch = draw(values)
    for _ in range(draw(st.integers(0, 3))):
        fetch = Dereference(draw(OFFSETS), fetch, draw(st.booleans()))
    in_memory = isinstance(fetch, Memory | SymbolMemory | Dereference)
    return fetch, draw(memory_types if in_memory else number_types)


def conditions_of(values: st.SearchStrategy[Fetch]) -> st.SearchStrategy[Condition]:
    """Conditions whose names are still to be filled in: they only have an index."""
    placeholders = st.builds(Name, st.integers(0, 3), st.just(""), st.just(X64))
    variables: st.SearchStrategy[Operand] = placeholders | st.builds(FetchOperand, values, number_types)

    def arithmetic(inner: st.SearchStrategy[Operand]) -> st.SearchStrategy[Operand]:
        shifts = st.integers(0, 63).map(Number) | variables
        return st.builds(
            Arithmetic, st.sampled_from(["|", "^", "&", "+", "-"]), inner, inner | NUMBERS.map(Number)
        ) | st.builds(Arithmetic, st.sampled_from(["<<", ">>"]), inner, shifts)

    operand = st.recursive(variables, arithmetic, max_leaves=4)
    comparisons = st.builds(
        Comparison, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), operand, operand
    ) | st.builds(
        Comparison, st.sampled_from(["==", "!="]), st.builds(FetchOperand, values), NUMBERS.map(Number)
    )

    def joined(inner: st.SearchStrategy[Condition]) -> st.SearchStrategy[Condition]:
        terms = st.lists(inner, min_size=2, max_size=4).map(tuple)
        return st.builds(Not, inner) | st.builds(Logical, st.sampled_from(["&&", "||"]), terms)

    return st.recursive(comparisons | operand, joined, max_leaves=6)


@overload
def filled(condition: Operand, arguments: tuple[FetchArgument, ...]) -> Operand: ...
@overload
def filled(condition: Condition, arguments: tuple[FetchArgument, ...]) -> Condition: ...
def filled(condition: Condition, arguments: tuple[FetchArgument, ...]) -> Condition:
    """The condition about these arguments, with terms of the same operator side by side."""
    match condition:
        case Name(index):
            if index >= len(arguments) or arguments[index].type.count or arguments[index].type == STRING:
                return FetchOperand(Register("di"))
            return Name(index, arguments[index].name, arguments[index].type)
        case Arithmetic(operator, left, right):
            return Arithmetic(operator, filled(left, arguments), filled(right, arguments))
        case Comparison(comparison, left, right):
            return Comparison(comparison, filled(left, arguments), filled(right, arguments))
        case Not(term):
            return Not(filled(term, arguments))
        case Logical(logical, terms):
            flat: list[Condition] = []
            for term in (filled(term, arguments) for term in terms):
                flat += term.terms if isinstance(term, Logical) and term.operator == logical else [term]
            return Logical(logical, tuple(flat))
        case _:
            return condition


FETCHES = {values: typed_fetches(values) for values in (leaves, values_at_entry, values_at_return)}
CONDITIONS = {values: conditions_of(values) for values in FETCHES}


@st.composite
def specs(draw: st.DrawFn) -> ProbeSpec:
    is_return = draw(st.booleans())
    where = draw(wheres)
    if is_return and where.symbol is not None:
        where = Where(where.module, where.symbol)
    values = values_at_return if is_return else values_at_entry
    if where.symbol is not None and where.offset:
        values = leaves
    names = draw(st.lists(WORDS, unique=True, max_size=4))
    arguments = tuple(
        FetchArgument(name, *draw(st.just((Comm(), STRING)) | FETCHES[values])) for name in names
    )
    event = draw(st.none() | WORDS)
    condition = draw(st.none() | CONDITIONS[values])
    return ProbeSpec(
        "r" if is_return else "p",
        draw(st.none() | st.integers(1, 65536)) if is_return else None,
        None if event is None else draw(st.none() | WORDS),
        event,
        where,
        arguments,
        None if condition is None else filled(condition, arguments),
    )


@settings(deadline=None)
@given(specs())
def test_every_tree_survives_its_text(spec: ProbeSpec) -> None:
    text = format_spec(spec)
    again = parse(text)
    assert again == spec
    assert hash(again) == hash(spec)
    assert format_spec(again) == text
    for node in fetches(again):
        assert text[node.column] in "%$@\\+-"
    for argument in again.arguments:
        assert text.startswith(f"{argument.name}=", argument.column)
    for operand in operands(again.condition) if again.condition is not None else ():
        assert text.startswith(str(operand), operand.column)


WORDS_OF_PROBES = r"""
    p: r: r5: p grp/ev libc: malloc ns::f(int,char) operator << " \ +4 -4 0x10 010 x= size= %di %edi $arg1
    $retval $stack $comm @environ @libc:environ +8( -8( +u8( ) :u8 :string :b4@8/32 [3] if size x == = < >
    && || & | ! ( 12 -1 * :: : % $ @ é 9999999999999999999999 const [ ] { } -> , ~ #
"""
BLANKS = [" ", "  ", "\t", " if ", "ev ", "r ", "\x1b", "\u00a0"]
FRAGMENTS = st.sampled_from(BLANKS + WORDS_OF_PROBES.split())


def read(reader: Callable[[str], ProbeSpec | Where], text: str) -> ProbeSpec | Where | ProbeSyntaxError:
    try:
        return reader(text)
    except ProbeSyntaxError as error:
        return error


def check(text: str) -> None:
    """The text is a probe with a canonical text, or an error that can be shown."""
    for reader in (parse, parse_where):
        result = read(reader, text)
        if isinstance(result, ProbeSpec):
            assert parse(format_spec(result)) == result
        if isinstance(result, ProbeSyntaxError):
            assert 0 <= result.column <= len(result.text)
            assert "\x1b" not in str(result)
            assert len(str(result).splitlines()) <= 3


@settings(deadline=None)
@given(st.text() | st.lists(FRAGMENTS, max_size=12).map("".join))
@example("p:f if " + "(" * 5000)
@example("p:f if " + "!" * 5000)
@example("p:f if " + "-" * 5000)
@example("p:f if %di" + "+%di" * 3000)
@example("p:f " + "+0(" * 4000)
@example("p:" + "<" * 16000)
@example("p:" + "<(" * 8000)
@example("p:" + "operator " * 1800)
@example('p:"' + "\\" * 16000)
@example("p:f x=" + "9" * 16000)
@example("p:f @" + "a::" * 5000)
@example("p:" + "[a]" * 5000 + ":f")
def test_any_text_is_a_probe_or_a_syntax_error(text: str) -> None:
    check(text)


@settings(deadline=None)
@given(specs(), st.data())
def test_a_damaged_probe_is_a_probe_or_a_syntax_error(spec: ProbeSpec, data: st.DataObject) -> None:
    text = format_spec(spec)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 4)))
    check(text[:start] + data.draw(FRAGMENTS | st.just("")) + text[end:])
