"""WHERE in a probe text: modules, symbols, C++ and Rust names, quotes, offsets."""

from __future__ import annotations

import pytest

from harness.carets import refused
from sidestep.spec import (
    Where,
    parse,
    parse_where,
)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("malloc", Where(None, "malloc")),
        ("malloc+4", Where(None, "malloc", 4)),
        ("libc:malloc+0x1F", Where("libc", "malloc", 31)),
        ("libc:0x1234", Where("libc", None, 0x1234)),
        ("0x401000", Where(None, None, 0x401000)),
        ("libc*:*alloc?", Where("libc*", "*alloc?")),
        ("lib[cm].so.6:[mc]alloc", Where("lib[cm].so.6", "[mc]alloc")),
        ("[vdso]:__vdso_time", Where("[vdso]", "__vdso_time")),
        ("libstdc++.so.6:memcpy", Where("libstdc++.so.6", "memcpy")),
        ("libc:pthread_create@GLIBC_2.34", Where("libc", "pthread_create@GLIBC_2.34")),
        ("ns::f", Where(None, "ns::f")),
        ("app:ns::f", Where("app", "ns::f")),
        ("ns::f(int, char)", Where(None, "ns::f(int, char)")),
        ("ns::f(int, char)+8", Where(None, "ns::f(int, char)", 8)),
        (
            "libstdc++:std::ostream::operator<<(int)",
            Where("libstdc++", "std::ostream::operator<<(int)"),
        ),
        ("std::map<int, char*>::at(int const&)", Where(None, "std::map<int, char*>::at(int const&)")),
        ("f(int) const", Where(None, "f(int) const")),
        ("f(int) const &", Where(None, "f(int) const &")),
        ("f(int) [clone .cold]", Where(None, "f(int) [clone .cold]")),
        ("f[abi:cxx11](int)", Where(None, "f[abi:cxx11](int)")),
        ("app:f[abi:cxx11](int)", Where("app", "f[abi:cxx11](int)")),
        ("A::operator->() const", Where(None, "A::operator->() const")),
        ("A::operator()(int, int)", Where(None, "A::operator()(int, int)")),
        ("A::operator[](int)", Where(None, "A::operator[](int)")),
        ("operator< <int>(A<int> const&, int)", Where(None, "operator< <int>(A<int> const&, int)")),
        ("operator new[](unsigned long)", Where(None, "operator new[](unsigned long)")),
        ("A::operator unsigned long() const", Where(None, "A::operator unsigned long() const")),
        ("operator+", Where(None, "operator+")),
        ("operator++", Where(None, "operator++")),
        ("operator+(A, A)+3", Where(None, "operator+(A, A)", 3)),
        ('operator"" _km(long double)', Where(None, 'operator"" _km(long double)')),
        ("(anonymous namespace)::f()", Where(None, "(anonymous namespace)::f()")),
        ("main::{lambda(int, int)#1}::operator()", Where(None, "main::{lambda(int, int)#1}::operator()")),
        ("<T as core::fmt::Display>::fmt", Where(None, "<T as core::fmt::Display>::fmt")),
        ("<fn(u8) -> u8 as Trait>::call", Where(None, "<fn(u8) -> u8 as Trait>::call")),
        ("app:type:.eq.T", Where("app", "type:.eq.T")),
        ('"void ns::f<int>(int)"', Where(None, "void ns::f<int>(int)")),
        ('"app:void f<int>(int)+4"', Where("app", "void f<int>(int)", 4)),
        ('"app:void f<int>(int)"+4', Where("app", "void f<int>(int)", 4)),
        (r'"operator\"\"s(char)"', Where(None, 'operator""s(char)')),
        (r'"a\\b"', Where(None, "a\\b")),
        ('"my lib.so:f"', Where("my lib.so", "f")),
        ('"f-4"', Where(None, "f-4")),
        ("f-mode", Where(None, "f-mode")),
    ],
)
def test_forms(text: str, where: Where) -> None:
    assert parse(f"p:{text}").where == where
    spec = parse(f"p:event {text} x=+8(%di):u8 if x > 3 && x < (7 - 1)")
    assert spec.where == where
    assert len(spec.arguments) == 1
    assert parse_where(f" {text} ") == where


def test_a_where_alone_needs_no_quotes() -> None:
    assert parse_where("app:void f<int>(int)+4") == Where("app", "void f<int>(int)", 4)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("malloc", False), ("*alloc", True), ("m?lloc", True), ("[mc]alloc", True), ("0x10", False)],
)
def test_globs(text: str, expected: bool) -> None:
    assert parse_where(text).is_glob is expected


def test_columns() -> None:
    where = parse("p:event libc:malloc+16 %di").where
    assert (where.column, where.symbol_column, where.offset_column) == (8, 13, 20)
    where = parse(r'p:event "app:operator\"\"s(char)"+0x10').where
    assert (where.column, where.symbol_column, where.offset_column) == (8, 13, 34)


def test_errors() -> None:
    refused("libc:\n     ^", "a symbol is missing", "WHERE is")
    refused("libc:+4\n     ^", "a symbol is missing")
    refused(":f\n^", "a module name is missing")
    refused("libc:12\n     ^", "a symbol does not start with a digit", "0x12")
    refused("0xzz\n^", "'0xzz' is not a number", "0x")
    refused("0x10+4\n     ^", "an address takes no offset")
    refused("0x10000000000000000\n^", "out of range for an address", "2**64-1")
    refused("libc:f+\n       ^", "expected an offset")
    refused("libc:f+zz\n       ^", "expected an offset")
    refused("libc:f+010\n       ^", "'010' is not a number", "write 10")
    refused("libc:f-4\n      ^", "an offset cannot be negative", '"libc:f-4"')
    refused("p:ns::f(int %di\n       ^", "no closing one", "quotes")
    refused("p:ns::f)\n       ^", "no opening one")
    refused('p:"ns::f %di\n  ^', "the quote is not closed")
    refused('p:"ns::f"x\n         ^', "expected +OFFSET or a blank")
    refused('p:""\n   ^', "a symbol is missing")
