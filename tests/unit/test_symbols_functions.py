"""Functions by name, by glob and by address, compared with readelf; C and assembly."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from harness.samples import Samples, frame_entries, listed_functions, output_of
from sidestep.symbols.elf import ElfFile
from sidestep.symbols.functions import Function, FunctionTable

PROGRAM = """
#include <stdlib.h>
#define KEPT __attribute__((noinline, noipa))
long out;
KEPT int one(int a) { return a + 1; }
KEPT static int local(int a) { return a * 3; }
int alias_of_one(int) __attribute__((alias("one")));
int weak_one(int) __attribute__((weak, alias("one")));
__attribute__((cold, noinline)) void complain(int a) { out += a; }
KEPT int split(int a)
{
    if (__builtin_expect(a == 77, 0)) {
        complain(a);
        complain(a + out);
        abort();
    }
    return a + 5;
}
int main(int argc, char **argv) { (void)argv; return one(argc) + local(argc) + split(argc); }
"""
ASSEMBLY = """
        .text
        .globl  whole, bare, label
        .type   whole, @function
whole:  .cfi_startproc
        nop
        nop
label:  nop
        ret
        .cfi_endproc
        .size   whole, . - whole
        .type   bare, @function
bare:   .cfi_startproc
        nop
        ret
        .cfi_endproc
        .balign 16, 0xcc
        .type   last, @function
last:   nop
        ret
        .type   unframed, @function
unframed: nop
        nop
        ret
local_label: nop
        .globl  __start_things, thing_end
__start_things: nop
thing_end: ret
        .section .note.GNU-stack, "", @progbits
"""
VERSIONS = "V1 { global: renewed; kept; gone; }; V2 { global: renewed; } V1; HIDDEN { local: *; };"
VERSIONED = """
__asm__(".symver first,renewed@V1");
__asm__(".symver second,renewed@@V2");
__asm__(".symver third,gone@V1");
int first(void) { return 1; }
int second(void) { return 22; }
int third(void) { return 333; }
int kept(void) { return 4444; }
"""


def table_of(path: Path) -> FunctionTable:
    return FunctionTable(ElfFile.open(str(path)))


def only(functions: list[Function]) -> Function:
    assert len(functions) == 1
    return functions[0]


@pytest.fixture
def program(samples: Samples) -> FunctionTable:
    return table_of(samples(PROGRAM, "-O2", "-freorder-blocks-and-partition"))


@pytest.fixture
def assembly(samples: Samples) -> FunctionTable:
    return table_of(samples(ASSEMBLY, "-shared", "-nostdlib", suffix=".s"))


@pytest.mark.parametrize(
    "flags", [("-O2",), ("-O0",), ("-O2", "-static"), ("-O2", "-static-pie"), ("-O2", "-no-pie")]
)
def test_every_function_of_readelf_is_there(samples: Samples, flags: tuple[str, ...]) -> None:
    path = samples(PROGRAM, *flags)
    table = table_of(path)
    listed = listed_functions(path)
    assert len(listed) > 10
    for symbol in listed:
        function = table.at(symbol.address)
        assert function is not None, symbol
        assert symbol.name in {name.partition("@")[0] for name in (function.symbol, *function.aliases)}
        assert function.start == symbol.address
        if symbol.size:
            assert function.end >= symbol.address + symbol.size
        if not function.is_part:
            assert (
                symbol.address in [found.start for found in table.named(symbol.name)]
                or symbol.bind == "LOCAL"
            )


def test_every_function_of_the_c_library_is_there() -> None:
    path = Path("/lib/x86_64-linux-gnu/libc.so.6")
    if not path.exists():
        pytest.skip("no libc.so.6 here")
    table = table_of(path)
    listed = listed_functions(path, dynamic=True)
    assert len(listed) > 2000
    for symbol in listed:
        if symbol.version.startswith("@") or not symbol.version:
            assert [found.start for found in table.named(symbol.name)] == [symbol.address]
        else:
            assert [found.start for found in table.named(f"{symbol.name}@{symbol.version}")] == [
                symbol.address
            ]
    kinds = {symbol.address: symbol.type for symbol in listed}
    assert {function.start for function in table.matching("*")} == set(kinds)
    assert {f.start for f in table.matching("*") if f.kind == "ifunc"} == {
        a for a, kind in kinds.items() if kind == "IFUNC"
    }


def test_names_of_one_address_are_aliases(program: FunctionTable) -> None:
    function = only(program.named("one"))
    assert set(function.aliases) == {"alias_of_one", "weak_one"}
    asked = only(program.named("weak_one"))
    assert asked.symbol == asked.name == "weak_one"
    assert "one" in asked.aliases
    assert asked.start == function.start
    assert program.at(function.start) == function


def test_an_address_is_in_the_function_that_covers_it(program: FunctionTable) -> None:
    for name in ("one", "local", "main"):
        function = only(program.named(name))
        for address in (function.start, function.start + 1, function.end - 1):
            assert program.containing(address) == function
    assert program.containing(0) is None
    assert program.containing(1 << 60) is None


def test_cold_parts_are_never_entries(program: FunctionTable) -> None:
    whole = only(program.named("split"))
    part = next(function for function in program.all() if function.symbol == "split.cold")
    assert part.is_part
    assert not whole.is_part
    assert program.named("split.cold") == []
    for glob in ("split*", "*.cold", "*"):
        assert part.start not in [function.start for function in program.matching(glob)]
    assert program.containing(part.start + 1) == part
    assert program.containing(whole.start) == whole


def test_clones_are_found_by_their_own_name_only(samples: Samples) -> None:
    source = """
    __attribute__((noinline)) static long specialised(long a, long unused, const long *by) { return a / *by; }
    static const long by = 3;
    int main(int argc, char **argv) { return (int)specialised(argc, (long)argv, &by); }
    """
    path = samples(source, "-O2")
    clones = [symbol for symbol in listed_functions(path) if symbol.name.startswith("specialised.")]
    if not clones:
        pytest.skip("this compiler makes no clone")
    table = table_of(path)
    assert table.named("specialised") == []
    assert only(table.named(clones[0].name)).start == clones[0].address
    assert table.matching("spec*") == []
    assert only(table.matching("specialised.*")).start == clones[0].address
    assert clones[0].name in table.close_names("specialised")


def test_a_static_function_does_not_hide_a_global_one(samples: Samples) -> None:
    static = "static int same(int a) { return a * a; } int %s(int b) { return same(b); }"
    first = samples(static % "first", "-O0", "-c", "-fPIC")
    second = samples(static % "second", "-O0", "-c", "-fPIC")
    # Two files have it, both static: both are meant, and the user must say which.
    path = samples("int third(void) { return 3; }", "-shared", "-fPIC", str(first), str(second))
    assert len(table_of(path).named("same")) == 2
    path = samples("int same(int a) { return a; }", "-shared", "-fPIC", str(first), str(second))
    globals_ = [symbol.address for symbol in listed_functions(path, dynamic=True) if symbol.name == "same"]
    assert [function.start for function in table_of(path).named("same")] == globals_
    assert len(table_of(path).matching("same")) == 3


def test_symbols_without_a_size_end_with_their_unwind_entry_or_at_the_next_start(
    assembly: FunctionTable,
) -> None:
    whole, bare, last = (only(assembly.named(name)) for name in ("whole", "bare", "last"))
    assert whole.end - whole.start == 4
    assert bare.end - bare.start == 2
    assert last.start % 16 == 0
    assert only(assembly.named("unframed")).start == last.end == last.start + 2


def test_labels_that_other_files_see_are_names_but_do_not_split_a_function(assembly: FunctionTable) -> None:
    label, whole = only(assembly.named("label")), only(assembly.named("whole"))
    assert label.start == whole.start + 2
    assert assembly.containing(label.start + 1) == whole
    assert label.start in assembly.starts
    for name in ("local_label", "__start_things", "thing_end"):
        assert assembly.named(name) == []


def test_versions(samples: Samples) -> None:
    path = samples(VERSIONED, "-O1", "-shared", "-fPIC", version_script=VERSIONS)
    listed = {
        (symbol.name, symbol.version.removeprefix("@")): symbol.address
        for symbol in listed_functions(path, dynamic=True)
    }
    for file in (path, samples.stripped(path)):
        table = table_of(file)
        assert only(table.named("renewed")).start == listed["renewed", "V2"]
        assert only(table.named("renewed@V1")).start == listed["renewed", "V1"]
        assert only(table.named("renewed@@V2")).start == listed["renewed", "V2"]
        assert only(table.named("gone")).symbol in ("gone@V1", "third")
        assert only(table.named("gone")).start == listed["gone", "V1"]
        assert only(table.named("kept")).symbol == "kept"
        assert table.named("renewed@V9") == []
        assert table.named("@V1") == []
        assert {f.start for f in table.matching("renewed*")} == {
            listed["renewed", "V1"],
            listed["renewed", "V2"],
        }


def test_stripped_files_have_functions_by_their_unwind_entries(samples: Samples) -> None:
    path = samples(PROGRAM, "-O2", "-freorder-blocks-and-partition")
    stripped = samples.stripped(path)
    whole, table = table_of(path), table_of(stripped)
    entries = frame_entries(stripped)
    for name in ("one", "local", "main", "split"):
        function = only(whole.named(name))
        unnamed = only(table.named(f"sub_{function.start:x}"))
        assert unnamed.is_unnamed
        assert (unnamed.start, unnamed.end) == (function.start, function.end)
        assert unnamed.end == entries[unnamed.start]
        assert table.containing(function.start + 1) == unnamed
    assert table.matching("*") == [] or all(not function.is_unnamed for function in table.matching("*"))
    assert set(entries) >= {function.start for function in table.matching("sub_*")}
    assert table.named("sub_zz") == []
    assert table.named("sub_1") == []


def test_linkage_stubs_are_no_functions(samples: Samples) -> None:
    table = table_of(samples.stripped(samples(PROGRAM, "-O2")))
    stubs = [section for section in table.elf.sections if section.name.startswith(".plt")]
    assert stubs
    for stub in stubs:
        assert table.containing(stub.address) is None


def test_starts_are_all_symbols_and_unwind_entries_in_order(samples: Samples) -> None:
    path = samples(PROGRAM, "-O2", "-freorder-blocks-and-partition")
    table = table_of(path)
    wanted = {symbol.address for symbol in listed_functions(path)} | set(frame_entries(path))
    assert list(table.starts) == sorted(table.starts)
    assert wanted <= set(table.starts) | {start for start in wanted if not table.elf.in_text(start)}


def test_without_section_headers_the_dynamic_symbols_are_found(samples: Samples) -> None:
    for style in ("gnu", "sysv"):
        path = samples(
            VERSIONED, "-O1", "-shared", "-fPIC", f"-Wl,--hash-style={style}", version_script=VERSIONS
        )
        data = bytearray(path.read_bytes())
        struct.pack_into("<Q", data, 0x28, 0)
        struct.pack_into("<HHH", data, 0x3A, 0, 0, 0)
        bare = FunctionTable(ElfFile.from_bytes(bytes(data), "bare"))
        whole = table_of(path)
        for name in ("renewed", "renewed@V1", "kept"):
            assert only(bare.named(name)).start == only(whole.named(name)).start


def test_names_that_only_differ_a_little_are_suggested(program: FunctionTable) -> None:
    assert program.close_names("mian") == ["main"]
    assert program.close_names("compalin") == ["complain"]
    assert "weak_one" in program.close_names("wek_one")
    assert program.close_names("zzzzzzzzzzzz") == []
    assert "split.cold" not in program.close_names("splitcold")


def test_globs(program: FunctionTable) -> None:
    assert [function.symbol for function in program.matching("loc?l")] == ["local"]
    assert [function.symbol for function in program.matching("[mn]ain")] == ["main"]
    # The name that matched is the one that is shown.
    assert [function.symbol for function in program.matching("weak_*")] == ["weak_one"]
    assert program.matching("nothing*") == []


def test_functions_that_link_time_optimisation_renamed(samples: Samples) -> None:
    source = """
        .text
        .type "renamed.llvm.123456", @function
"renamed.llvm.123456": ret
        .size "renamed.llvm.123456", 1
        .type "private.lto_priv.0", @function
"private.lto_priv.0": ret
        .size "private.lto_priv.0", 1
        .section .note.GNU-stack, "", @progbits
    """
    table = table_of(samples(source, "-shared", "-nostdlib", suffix=".s"))
    for name in ("renamed", "private"):
        assert only(table.named(name)).symbol.startswith(f"{name}.")
        assert only(table.named(only(table.named(name)).symbol)) == only(table.named(name))
        assert table.matching(f"{name[:-1]}?") == table.named(name)


def test_imported_names_are_mentioned_even_if_they_share_their_characters(samples: Samples) -> None:
    source = "int rt_action(void); int action(void); int f(void) { return rt_action() + action(); }"
    table = table_of(samples(source, "-shared", "-fPIC"))
    assert [table.mentions(name) for name in ("action", "rt_action", "f")] == [True] * 3
    assert [table.mentions(name) for name in ("ction", "rt", "none")] == [False] * 3
    only_longer = table_of(samples(source.replace("+ action()", ""), "-shared", "-fPIC"))
    assert not only_longer.mentions("action")


def test_go_functions_called_cold_are_functions(samples: Samples) -> None:
    source = """
        .text
        .type "main.cold", @function
"main.cold": ret
        .size "main.cold", 1
        .section .gopclntab, "a"
        .quad 0
        .section .note.GNU-stack, "", @progbits
    """
    table = table_of(samples(source, "-shared", "-nostdlib", suffix=".s"))
    assert not only(table.named("main.cold")).is_part


def test_names_are_fit_to_be_printed(samples: Samples) -> None:
    path = samples(
        "int evil_name_here(void) { return 1; }\nint other(void) { return 2; }", "-shared", "-fPIC"
    )
    data = path.read_bytes().replace(b"evil_name_here", b"evil\x1b]2;me!\x07\xff\xfe")
    table = FunctionTable(ElfFile.from_bytes(data, "evil"))
    names = [function.name for function in table.matching("*")]
    assert all(name.isprintable() for name in names)
    assert "evil\\x1b]2;me!\\x07\\xff\\xfe" in names


def test_a_resolver_has_two_names(samples: Samples) -> None:
    source = """
    static int plain(int a) { return a; }
    static int (*choose(void))(int) { return plain; }
    int chosen(int) __attribute__((ifunc("choose")));
    int main(void) { return chosen(1); }
    """
    table = table_of(samples(source, "-O1"))
    assert only(table.named("chosen")).kind == "ifunc"
    assert only(table.named("choose")).kind == "func"
    assert only(table.named("chosen")).start == only(table.named("choose")).start


def test_nm_agrees_about_a_large_library(samples: Samples) -> None:
    path = samples(
        "\n".join(f"int function_{n}(int a) {{ return a + {n}; }}" for n in range(1000)),
        "-O1",
        "-shared",
        "-fPIC",
    )
    table = table_of(path)
    listed = {
        line.split()[2]: int(line.split()[0], 16)
        for line in output_of("nm", path).splitlines()
        if " T " in line
    }
    assert len(table.matching("function_*")) == 1000
    assert {function.symbol: function.start for function in table.matching("function_*")} == {
        name: address for name, address in listed.items() if name.startswith("function_")
    }


ALIASES = """
        .text
        .globl  zeta, __alpha
        .weak   beta, __gamma
        .type   zeta, @function
        .type   __alpha, @function
        .type   beta, @function
        .type   __gamma, @function
        .type   aa_local, @function
zeta:
__alpha:
beta:
__gamma:
aa_local:
        ret
        .weak   weak_two, weak_one, _w
        .type   weak_two, @function
        .type   weak_one, @function
        .type   _w, @function
weak_two:
weak_one:
_w:     ret
        .section .note.GNU-stack, "", @progbits
"""


@pytest.mark.parametrize(
    ("glob", "symbol"),
    [
        ("zeta", "zeta"),
        ("beta", "beta"),
        ("__alpha", "__alpha"),
        ("*a", "zeta"),  # global before weak
        ("*eta", "zeta"),
        ("b*", "beta"),
        ("__*", "__alpha"),
        ("*l*", "__alpha"),  # visible to others before local
        ("*w*", "weak_one"),  # no underscore in front; of two that are as long the first
    ],
)
def test_of_several_names_the_expected_one_is_shown(samples: Samples, glob: str, symbol: str) -> None:
    table = table_of(samples(ALIASES, "-shared", "-nostdlib", suffix=".s"))
    found = table.matching(glob)
    assert symbol in [function.symbol for function in found]
    assert only([function for function in found if function.symbol == symbol]).start
    assert len(found) == len({function.start for function in found})
