"""What a probepoint's text stands for: modules, names, globs, offsets, IFUNCs; and names for addresses."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from harness.samples import Samples, listed_functions, output_of
from sidestep import errors
from sidestep.address import Range
from sidestep.errors import ProbeError, Reason
from sidestep.spec import Where
from sidestep.symbols.elf import ElfFile
from sidestep.symbols.modules import Module, offline_module
from sidestep.symbols.names import is_only_glob
from sidestep.symbols.resolve import Symbolizer, data_address, resolve, resolve_all, symbolize

FIRST = """
namespace ns { int f(int a) { return a; } int f(char *a) { return *a; } int g(long a) { return (int)a; } }
extern "C" int shared_name(int a) { return a; }
extern "C" int only_here(int a) { return a * 5; }
int variable = 3;
__thread int local_to_threads = 4;
"""
SECOND = """
int shared_name(int a) { return a + 1; }
int second_alone(int a) { return a + 2; }
static int same_static(int a) { return a; }
int user(int a) { return same_static(a); }
"""
INDIRECT = """
static int plain(int a) { return a; }
static int fast(int a) { return a + 1; }
static int (*choose(void))(int) { return fast; }
int chosen(int) __attribute__((ifunc("choose")));
int again(int) __attribute__((ifunc("choose")));
int (*pointer)(int) = plain;
"""
IMPORTER = "int chosen(int); int call(int a) { return chosen(a) + 1; } int (*pointer)(int) = chosen;"


class Memory:
    """Pretends to be the target's memory: what was put at addresses, nothing elsewhere."""

    def __init__(self) -> None:
        self.words: dict[int, int] = {}

    def read(self, address: int, size: int) -> bytes:
        if address not in self.words or size != 8:
            raise OSError(14, "no memory")
        return struct.pack("<Q", self.words[address])


def loaded(path: Path, name: str, bias: int) -> Module:
    elf = ElfFile.open(str(path))
    ranges = [Range(bias + load.address, bias + load.address + load.memory_size) for load in elf.loads]
    return Module(f"/usr/lib/{name}", str(path), elf, bias, ranges)


@pytest.fixture
def modules(samples: Samples) -> list[Module]:
    shared = ("-O1", "-shared", "-fPIC")
    return [
        loaded(samples(FIRST, *shared, suffix=".cc"), "program-1.2", 0x550000000000),
        loaded(
            samples(SECOND, *shared, "-Wl,-soname,libsecond.so.7"), "libsecond-2.1.so.7.3", 0x7F0000000000
        ),
        loaded(samples(SECOND, *shared), "libother.so.2", 0x7F1000000000),
    ]


def nothing(address: int, size: int) -> bytes:
    return b""


def refusal(modules: list[Module], where: Where) -> ProbeError:
    with pytest.raises(ProbeError) as caught:
        resolve(modules, where, nothing)
    assert str(caught.value).startswith(str(where))
    assert str(caught.value).isprintable() or "\n" in str(caught.value)
    return caught.value


def test_the_first_module_that_has_the_name_counts(modules: list[Module]) -> None:
    [location] = resolve(modules, Where(None, "shared_name"), nothing)
    assert location.module is modules[0]
    [location] = resolve(modules, Where(None, "second_alone"), nothing)
    assert location.module is modules[1]
    assert location.symbol == "second_alone"
    assert location.function is not None
    assert location.address == modules[1].bias + location.function.start
    assert (location.offset, location.note) == (0, None)


def test_a_piece_of_a_file_that_is_mapped_once_more_is_no_second_module(samples: Samples) -> None:
    """Of a plain name. A glob takes the functions that are in the piece."""
    whole = loaded(samples(FIRST, "-O1", "-shared", "-fPIC", suffix=".cc"), "program", 0x550000000000)
    bias = 0x7F0000000000
    only = whole.functions.named("only_here")[0]
    piece = Module(
        "/usr/lib/program", whole.file, whole.elf, bias, [Range(bias + only.start, bias + only.end)]
    )
    assert (whole.is_whole, piece.is_whole) == (True, False)
    [location] = resolve([whole, piece], Where("program", "only_here"), nothing)
    assert location.module is whole
    found = resolve([whole, piece], Where(None, "*_*e*"), nothing, everywhere=True)
    assert [(each.module, each.symbol) for each in found if each.symbol in ("only_here", "shared_name")] == [
        (whole, "shared_name"),
        (whole, "only_here"),
        (piece, "only_here"),
    ]


@pytest.mark.parametrize("name", ["uv_*", "ns::*", "f?"])
def test_what_can_only_be_a_glob(name: str) -> None:
    assert is_only_glob(name)


@pytest.mark.parametrize("name", ["ns::f(char*)", "operator*", "list<int*>::add", "operator[]", "f"])
def test_what_can_be_a_name(name: str) -> None:
    assert not is_only_glob(name)


@pytest.mark.parametrize(
    "name",
    [
        "libsecond-2.1.so.7.3",
        "libsecond-2.1",
        "libsecond",
        "libsecond.so.7",
        "libsec*",
        "*second*",
        "/usr/lib/libsec*",
    ],
)
def test_a_module_is_found_by_its_file_its_stem_and_its_own_name(modules: list[Module], name: str) -> None:
    [location] = resolve(modules, Where(name, "shared_name"), nothing)
    assert location.module is modules[1]


def test_a_module_glob_finds_the_name_in_each(modules: list[Module]) -> None:
    locations = resolve(modules, Where("lib*", "shared_name"), nothing)
    assert [location.module for location in locations] == modules[1:]


def test_a_plain_name_for_several_modules_is_ambiguous(modules: list[Module]) -> None:
    twice = [*modules, loaded(Path(modules[2].file), "libother.so.3", 0x7F2000000000)]
    error = refusal(twice, Where("libother", "shared_name"))
    assert error.reason is errors.AMBIGUOUS
    assert "/usr/lib/libother.so.2, /usr/lib/libother.so.3" in error.detail
    [location] = resolve(twice, Where("libother.so.3", "shared_name"), nothing)
    assert location.module is twice[3]


@pytest.mark.parametrize(
    ("where", "reason", "detail"),
    [
        (Where("libthird", "f"), errors.NO_SUCH_MODULE, "libthird"),
        (Where("libothr", "f"), errors.NO_SUCH_MODULE, "Did you mean libother"),
        (Where(None, "shraed_name"), errors.NO_SUCH_SYMBOL, "Did you mean shared_name?"),
        (
            Where("libother", "second_alnoe"),
            errors.NO_SUCH_SYMBOL,
            "in libother.so.2. Did you mean second_alone?",
        ),
        (Where(None, "variable"), errors.NO_SUCH_SYMBOL, "variable in program-1.2 is a variable"),
        (Where(None, "work.cold"), errors.NO_SUCH_SYMBOL, "a part of a function"),
        (Where(None, "nothing*"), errors.NO_SUCH_SYMBOL, "nothing*"),
        (Where(None, "ns::f"), errors.AMBIGUOUS, "ns::f(int), ns::f(char*)"),
        (Where(None, "ns::h"), errors.NO_SUCH_SYMBOL, "Did you mean"),
        (Where("libother", "user", 0x1000), errors.OFFSET_OUTSIDE, "user has 0x"),
        (Where("libother", None, 0), errors.NOT_IN_TEXT, "0x0 in libother.so.2"),
        (Where("libother", None, 1 << 63), errors.NOT_IN_TEXT, "in libother.so.2"),
    ],
    ids=str,
)
def test_refusals(modules: list[Module], where: Where, reason: Reason, detail: str) -> None:
    error = refusal(modules, where)
    assert error.reason is reason
    assert detail in error.detail


def test_static_functions_of_one_name_are_listed_by_their_addresses(samples: Samples) -> None:
    objects = [
        samples(
            f"static int same(int a) {{ return a; }} int u{n}(int a) {{ return same(a); }}",
            "-O0",
            "-c",
            "-fPIC",
        )
        for n in (1, 2)
    ]
    module = loaded(samples("int v;", "-shared", "-fPIC", *map(str, objects)), "libx.so", 0)
    error = refusal([module], Where(None, "same"))
    addresses = [symbol.address for symbol in listed_functions(Path(module.file)) if symbol.name == "same"]
    assert error.detail == ", ".join(f"libx.so:{address:#x}" for address in sorted(addresses))
    [location] = resolve([module], Where("libx.so", None, addresses[0]), nothing)
    assert (location.symbol, location.offset, location.address) == ("same", 0, addresses[0])


def test_overloads_with_parameters_are_exact(modules: list[Module]) -> None:
    [location] = resolve(modules, Where(None, "ns::f(char*)"), nothing)
    assert location.symbol == "ns::f(char*)"
    [location] = resolve(modules, Where(None, "ns::g"), nothing)
    assert location.symbol == "ns::g(long)"


def test_globs(modules: list[Module]) -> None:
    locations = resolve(modules, Where(None, "ns::*"), nothing)
    assert [location.symbol for location in locations] == ["ns::f(int)", "ns::f(char*)", "ns::g(long)"]
    assert {location.module for location in resolve(modules, Where(None, "second_*"), nothing)} == {
        modules[1]
    }
    everywhere = resolve(modules, Where(None, "s*_*"), nothing, everywhere=True)
    assert {location.module for location in everywhere} == set(modules)


def test_a_glob_leaves_out_what_cannot_be_resolved_and_tells(modules: list[Module]) -> None:
    sizes = {
        function.symbol: function.end - function.start for function in modules[0].functions.matching("ns::*")
    }
    offset = max(sizes.values()) - 1
    resolution = resolve_all(modules[:1], Where(None, "ns::*", offset), nothing)
    assert len(resolution.locations) == sum(size > offset for size in sizes.values())
    assert len(resolution.locations) + len(resolution.refused) == 3
    assert all(error.reason is errors.OFFSET_OUTSIDE for error in resolution.refused)
    with pytest.raises(ProbeError) as caught:
        resolve_all(modules[:1], Where(None, "ns::*", 5000), nothing)
    assert caught.value.reason is errors.OFFSET_OUTSIDE
    assert caught.value.subject == "ns::f(int)+0x1388"


def test_offsets_and_bare_addresses(modules: list[Module]) -> None:
    [start] = resolve(modules, Where("libother", "user"), nothing)
    [inside] = resolve(modules, Where("libother", "user", 2), nothing)
    assert inside.address == start.address + 2
    assert start.function is not None
    [same] = resolve(modules, Where("libother", None, start.function.start + 2), nothing)
    assert (same.symbol, same.offset, same.address) == ("user", 2, inside.address)
    with pytest.raises(ProbeError):
        resolve(modules, Where(None, None, 0), nothing)
    [main] = resolve(modules, Where(None, None, modules[0].elf.text[0].start), nothing)
    assert main.module is modules[0]


def test_offline(samples: Samples) -> None:
    path = samples(SECOND, "-O1", "-shared", "-fPIC")
    module = offline_module(str(path))
    [location] = resolve([module], Where(None, "user"), nothing)
    assert location.address == next(s.address for s in listed_functions(path) if s.name == "user")
    assert location.address in module
    assert module.is_main
    assert module.text == module.elf.text


@pytest.fixture
def indirect(samples: Samples) -> list[Module]:
    return [
        loaded(samples(IMPORTER, "-O1", "-shared", "-fPIC"), "program", 0x550000000000),
        loaded(samples(INDIRECT, "-O1", "-shared", "-fPIC"), "libindirect.so", 0x7F0000000000),
    ]


def addresses_of(module: Module) -> dict[str, int]:
    return {symbol.name: module.bias + symbol.address for symbol in listed_functions(Path(module.file))}


def import_slot(module: Module, name: str) -> int:
    found = re.search(
        rf"^([0-9a-f]+) .*R_X86_64_(?:JUMP_SLO|GLOB_DA|64) .* {name}",
        output_of("readelf", "-rW", module.file),
        re.M,
    )
    assert found is not None
    return module.bias + int(found[1], 16)


def test_the_variant_that_callers_reach_is_probed(indirect: list[Module]) -> None:
    memory = Memory()
    names = addresses_of(indirect[1])
    memory.words[import_slot(indirect[0], "chosen")] = names["fast"]
    [location] = resolve(indirect, Where(None, "chosen"), memory.read)
    assert location.address == names["fast"]
    assert location.symbol == "chosen"
    assert location.note == "chosen is an IFUNC: fast"
    [location] = resolve(indirect, Where("libindirect", "chosen", 1), memory.read)
    assert location.address == names["fast"] + 1


@pytest.mark.parametrize("value", [None, 0, 0x550000001036, 0x7F0000000004, 1 << 63])
def test_a_variant_that_is_not_known_is_refused(indirect: list[Module], value: int | None) -> None:
    memory = Memory()
    if value is not None:
        memory.words[import_slot(indirect[0], "chosen")] = value
    with pytest.raises(ProbeError) as caught:
        resolve(indirect, Where(None, "chosen"), memory.read)
    assert caught.value.reason is errors.IFUNC_UNRESOLVED


def test_a_slot_that_leads_to_the_resolver_itself_is_not_believed(indirect: list[Module]) -> None:
    memory = Memory()
    memory.words[import_slot(indirect[0], "chosen")] = addresses_of(indirect[1])["choose"]
    with pytest.raises(ProbeError):
        resolve(indirect, Where(None, "chosen"), memory.read)


def test_two_names_of_one_variant_are_one_place_of_a_glob(indirect: list[Module]) -> None:
    memory = Memory()
    memory.words[import_slot(indirect[0], "chosen")] = addresses_of(indirect[1])["fast"]
    resolution = resolve_all(indirect, Where("libindirect", "*"), memory.read)
    addresses = [location.address for location in resolution.locations]
    assert len(addresses) == len(set(addresses))
    assert addresses_of(indirect[1])["fast"] in addresses


def test_data(modules: list[Module], samples: Samples) -> None:
    found = re.search(r"([0-9a-f]+) D variable", output_of("nm", modules[0].file))
    assert found is not None
    address = modules[0].bias + int(found[1], 16)
    assert data_address(modules, None, "variable") == address
    assert data_address(modules, "program*", "variable", 2) == address + 2
    assert (
        data_address(modules, None, "second_alone")
        == resolve(modules, Where(None, "second_alone"), nothing)[0].address
    )
    for name, reason in (
        ("local_to_threads", errors.NOT_SUPPORTED),
        ("missing", errors.NO_SUCH_VARIABLE),
        ("ns::f", errors.AMBIGUOUS),
    ):
        with pytest.raises(ProbeError) as caught:
            data_address(modules, None, name)
        assert caught.value.reason is reason


def test_names_for_addresses(modules: list[Module]) -> None:
    symbolizer = Symbolizer(modules)
    [location] = resolve(modules, Where(None, "ns::g"), nothing)
    assert symbolizer.name(location.address + 1) == "ns::g(long)+0x1"
    assert symbolizer.name(location.address) == "ns::g(long)+0x0"
    assert symbolizer.name(modules[1].bias) == "libsecond-2.1.so.7.3:0x0"
    assert symbolizer.name(0x1234) == "0x1234"
    assert symbolizer.name(0) == "0x0"
    assert symbolizer.name((1 << 64) - 1) == "0xffffffffffffffff"
    assert symbolize(modules, location.address) == "ns::g(long)+0x0"
    assert symbolizer.module(location.address) is modules[0]


def test_names_for_addresses_of_stripped_files(samples: Samples) -> None:
    path = samples.stripped(
        samples("static int f(int a) { return a; } int main(int a, char **b) { return f(a) + !b; }", "-O0")
    )
    module = loaded(path, "bare", 0x1000000)
    function = next(iter(module.functions.matching("sub_*")))
    assert symbolize([module], 0x1000000 + function.start + 1) == f"bare:sub_{function.start:x}+0x1"
