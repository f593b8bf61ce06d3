"""C++ and Rust names: demangled, looked up in every form, overloads told apart."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from harness.samples import Samples, listed_functions
from sidestep.symbols.demangle import LONGEST_MANGLED, LONGEST_READABLE, demangle, readable, squeezed
from sidestep.symbols.elf import ElfFile
from sidestep.symbols.functions import Function, FunctionTable
from sidestep.symbols.names import needles

CPP = """
#include <string>
#include <vector>
#define KEPT __attribute__((noinline, used))
namespace ns {
    KEPT int f(int a) { return a; }
    KEPT int f(char *a) { return *a; }
    KEPT int f(double a) { return (int)a; }
    KEPT int alone(std::string const &a, long b) { return (int)a.size() + (int)b; }
    template <class T> KEPT T generic(T a) { return a; }
    template int generic<int>(int);
    struct Base { virtual ~Base() {} virtual int act(int a) { return a; } };
    struct Other { virtual ~Other() {} virtual int react(int a) { return a; } };
    struct Both : Base, Other {
        KEPT Both(int a) : value(a) {}
        KEPT ~Both() override { value = 0; }
        KEPT int act(int a) override { return a + value; }
        KEPT int react(int a) override { return a - value; }
        KEPT int operator[](int a) const { return a + value; }
        KEPT int operator()(int *a) { return *a; }
        int value;
    };
    namespace { KEPT int hidden(int a) { return a * 2; } }
    KEPT int use(int a) { return hidden(a); }
}
KEPT int plain(int a) { return a; }
int main(int argc, char **argv) {
    ns::Both both(argc);
    ns::Base *base = &both; ns::Other *other = &both;
    auto lambda = [&](int a) __attribute__((noinline)) { return a + argc; };
    std::vector<int> list(3, argc);
    return base->act(1) + other->react(2) + both[1] + both(&argc) + ns::f(1) + ns::f(*argv) + ns::f(1.0)
        + ns::alone("x", 1) + ns::use(1) + plain(2) + lambda(3) + ns::generic(2) + list.at(1);
}
"""
RUST = """
pub mod deep {
    pub struct Thing { pub value: u64 }
    impl Thing { #[inline(never)] pub fn get(&self) -> u64 { self.value + 1 } }
    pub trait Act { fn act(&self) -> u64; }
    impl Act for Thing { #[inline(never)] fn act(&self) -> u64 { self.value * 2 } }
    #[inline(never)] pub fn generic<T: std::fmt::Debug>(value: T) -> usize { format!("{:?}", value).len() }
}
use deep::Act;
fn main() {
    let thing = deep::Thing { value: std::env::args().count() as u64 };
    println!("{} {} {}", thing.get(), thing.act(), deep::generic(thing.value) + deep::generic("x"));
}
"""


def only(functions: list[Function]) -> Function:
    assert len(functions) == 1, [function.name for function in functions]
    return functions[0]


@pytest.fixture
def cpp(samples: Samples) -> FunctionTable:
    return FunctionTable(ElfFile.open(str(samples(CPP, "-O1", suffix=".cc"))))


@pytest.fixture(params=["legacy", "v0"])
def rust(request: pytest.FixtureRequest, samples: Samples) -> FunctionTable:
    path = samples(
        RUST, "-O", f"-Csymbol-mangling-version={request.param}", *_unstable(request.param), suffix=".rs"
    )
    return FunctionTable(ElfFile.open(str(path)))


def _unstable(version: str) -> tuple[str, ...]:
    return ("-Zunstable-options",) if version == "legacy" else ()


def test_a_name_is_found_in_every_form(cpp: FunctionTable) -> None:
    function = only(cpp.named("_ZN2ns1fEd"))
    assert function.symbol == "_ZN2ns1fEd"
    assert function.name == "ns::f(double)"
    for form in ("ns::f(double)", "ns::f( double )"):
        assert only(cpp.named(form)).start == function.start
    alone = only(cpp.named("ns::alone"))
    assert alone.name.startswith("ns::alone(std::")
    assert only(cpp.named(alone.name)).start == alone.start
    assert only(cpp.named("plain")).name == "plain(int)"


def test_overloads_are_all_found_by_the_name_without_parameters(cpp: FunctionTable) -> None:
    assert {function.name for function in cpp.named("ns::f")} == {
        "ns::f(int)",
        "ns::f(char*)",
        "ns::f(double)",
    }


def test_names_with_characters_of_globs_are_names_first(cpp: FunctionTable) -> None:
    assert only(cpp.named("ns::f(char*)")).symbol == "_ZN2ns1fEPc"
    assert only(cpp.named("ns::Both::operator[]")).name == "ns::Both::operator[](int) const"
    assert only(cpp.named("ns::Both::operator()")).name == "ns::Both::operator()(int*)"


def test_templates_have_a_return_type_that_may_be_left_out(cpp: FunctionTable) -> None:
    function = only(cpp.named("ns::generic<int>"))
    assert function.name == "ns::generic<int>(int)"
    assert only(cpp.named("int ns::generic<int>(int)")).start == function.start
    assert "ns::generic<int>" in cpp.close_names("ns::generic")


def test_anonymous_namespaces_and_lambdas(cpp: FunctionTable) -> None:
    assert (
        only(cpp.named("ns::(anonymous namespace)::hidden")).name == "ns::(anonymous namespace)::hidden(int)"
    )
    assert any("lambda" in function.name for function in cpp.matching("main::*"))


def test_thunks_are_not_the_function_they_lead_to(cpp: FunctionTable) -> None:
    function = only(cpp.named("ns::Both::react"))
    thunk = only(cpp.matching("non-virtual thunk to ns::Both::react*"))
    assert thunk.name == "non-virtual thunk to ns::Both::react(int)"
    assert thunk.start != function.start


def test_destructors_of_one_name_are_told_apart(cpp: FunctionTable) -> None:
    functions = cpp.named("ns::Both::~Both")
    assert len({function.symbol for function in functions}) == len(functions) >= 2


def test_globs_match_mangled_and_readable_names(cpp: FunctionTable) -> None:
    readable_names = {function.start for function in cpp.matching("ns::f*")}
    assert readable_names == {function.start for function in cpp.matching("_ZN2ns1f*")}
    assert {function.name for function in cpp.matching("ns::f(*)")} == {
        "ns::f(int)",
        "ns::f(char*)",
        "ns::f(double)",
    }
    assert {function.name for function in cpp.matching("ns::?lone")} == {only(cpp.named("ns::alone")).name}


def test_rust(rust: FunctionTable) -> None:
    get = only(rust.named("sample::deep::Thing::get") or rust.named("<sample::deep::Thing>::get"))
    assert get.symbol in {symbol.name for symbol in listed_functions(Path(rust.elf.name))}
    act = only(rust.named("<sample::deep::Thing as sample::deep::Act>::act"))
    assert act.start != get.start
    assert len(rust.matching("sample::deep::generic*")) == 2
    assert rust.matching("*Thing*get*")
    # Nobody types the hash.
    assert not any(
        function.name.rpartition("::")[2].startswith("h0") for function in rust.matching("sample::*")
    )


def test_names_agree_with_cppfilt(cpp: FunctionTable) -> None:
    symbols = [function.symbol for function in cpp.matching("_Z*")]
    done = subprocess.run(
        ["c++filt"], input="\n".join(symbols), capture_output=True, text=True, timeout=60, check=True
    )
    differing = [
        (symbol, expected, forms.full if forms else None)
        for symbol, expected in zip(symbols, done.stdout.splitlines(), strict=True)
        if (forms := demangle(symbol)) is None or squeezed(forms.full) != squeezed(expected)
    ]
    # Lambdas are worded differently.
    assert [row for row in differing if "lambda" not in row[1]] == []


def test_what_is_not_mangled_stays_as_it_is() -> None:
    for name in (
        "main",
        "",
        "_Z",
        "_R",
        "_ZN",
        "_start",
        "_Reverse",
        "x" * 5000,
        "_Z" + "x" * 5000,
        "?f@@YAXH@Z",
        "$s4main",
    ):
        assert readable(name) == name


def test_a_lookup_of_a_c_name_does_not_import_the_library() -> None:
    code = (
        "import sys\n"
        "from sidestep.symbols.functions import FunctionTable\n"
        "from sidestep.symbols.elf import ElfFile\n"
        "table = FunctionTable(ElfFile.open(sys.argv[1]))\n"
        "assert table.named('malloc') and table.matching('mall*') and not table.named('not::there')\n"
        "assert 'multi_demangle' not in sys.modules\n"
    )
    libc = Path("/lib/x86_64-linux-gnu/libc.so.6")
    if not libc.exists():
        pytest.skip("no libc.so.6 here")
    words = [sys.executable, "-c", code, str(libc)]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=60, check=False, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("readable_name", "pieces"),
    [
        ("ns::Thing::method(char const*)", ("method", "Thing")),
        ("std::map<int, std::allocator<int> >::push_back", ("push_back", "map")),
        ("std::allocator<char>::allocator", ()),
        ("*alloc*", ()),
        ("std::*[ab]c*", ()),
        ("operator*", ()),
        ("poly<12u, 3ul>", ("poly",)),
        ("scope::{closure#0}", ("scope",)),
        ("größe", ()),
        ("_ZN2ns1f*", ("_ZN2ns1f",)),
    ],
)
def test_needles_are_what_the_mangled_name_must_hold(readable_name: str, pieces: tuple[str, ...]) -> None:
    assert needles(readable_name) == pieces


def test_needles_never_hide_a_name(cpp: FunctionTable) -> None:
    for function in cpp.matching("_Z*"):
        forms = demangle(function.symbol)
        if forms is not None:
            for form in (*forms, forms.plain[:-1] + "*", "*" + forms.plain[1:]):
                assert all(piece in function.symbol for piece in needles(form)), (form, function.symbol)


def test_hostile_names_neither_crash_nor_hang_nor_grow(cpp: FunctionTable) -> None:
    nested = (
        "_Z1fPFv"
        + "iE"
        + "".join(f"PFvS{'' if n == 0 else n - 1}_S{'' if n == 0 else n - 1}_E" for n in range(9))
    )
    hostile = [
        "_Z1f" + "P" * 4000 + "i",
        "_Z1f" + "PFv" * 1000 + "i" + "E" * 1000,
        "_ZN" + "1aI" * 900 + "i" + "E" * 900 + "Ev",
        "_RNvB_1a",
        "_RNvNvNvB2_1a1b1c",
        "_R" + "Nv" * 1500 + "C1a" + "1a" * 400,
        "_ZTh" + "n8_" * 1000 + "1fv",
        "_ZThn8_" * 500 + "1fv",
        "_ZN3abc17h0123456789abcdefE" * 100,
        nested,
        "_Z\x00\x1b\udcff",
    ]
    rng = random.Random(20)
    symbols = [function.symbol for function in cpp.matching("_Z*")]
    tokens = [
        "S_",
        "S0_",
        "SA_",
        "T_",
        "I",
        "E",
        "N",
        "P",
        "Fv",
        "X",
        "Dp",
        "J",
        "_Z",
        "B_",
        "Nv",
        "17h0123456789abcdefE",
    ]
    for _ in range(3000):
        name = rng.choice(symbols)
        for _ in range(rng.randrange(1, 6)):
            position = rng.randrange(2, len(name) + 1)
            piece = rng.choice(tokens) * rng.randrange(1, 30)
            name = name[:position] + piece + name[position + rng.randrange(4) :]
        hostile.append(name[: LONGEST_MANGLED + 50])
    for name in hostile:
        assert len(readable(name)) <= max(LONGEST_READABLE, len(name))
        assert readable(name).isprintable() or readable(name) == name


def test_a_thunk_of_a_thunk_of_a_thunk() -> None:
    """No compiler makes one: a name of the longest that is looked at is no deep recursion."""
    name = "_Z" + "Th0_" * 1000 + "1fv"
    demangle(name)
    assert readable(name).isprintable()
