"""From the name of a probepoint to addresses, and from addresses to names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from sidestep import errors
from sidestep.errors import ProbeError
from sidestep.symbols import names
from sidestep.symbols.content import Reader
from sidestep.symbols.functions import Function
from sidestep.symbols.ifunc import chosen_variant
from sidestep.symbols.modules import AddressIndex, Module
from sidestep.symbols.printable import clean
from sidestep.symbols.symbol_table import STT_TLS, find_data

if TYPE_CHECKING:
    from sidestep.spec import Where

_MOST_NAMES_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Location:
    """One place that a name stands for.

    function  the function it is in, None where there is none known
    symbol    the name to show
    offset    bytes from the start of the function (without a function: the file's own address)
    address   at run time
    note      what the user should know, such as the variant that an IFUNC stands for
    """

    module: Module
    function: Function | None
    symbol: str
    offset: int
    address: int
    note: str | None = None

    @property
    def place(self) -> str:
        """`malloc`, `malloc+0x4`."""
        return f"{self.symbol}+{self.offset:#x}" if self.offset else self.symbol


class Resolution(NamedTuple):
    """What a glob stands for: the places, one for each address, and what it matched that cannot be probed."""

    locations: list[Location]
    refused: list[ProbeError]


def resolve(
    modules: Sequence[Module], where: Where, read: Reader, *, everywhere: bool = False
) -> list[Location]:
    """Everything that `where` stands for, by module and address; never empty.

    An exact name gives one location in each module that a module glob stands for. Without a module, the first
    module that has the name counts; with `everywhere`, a glob takes all of them. Raises ProbeError
    NO_SUCH_MODULE, NO_SUCH_SYMBOL, AMBIGUOUS, OFFSET_OUTSIDE, NOT_IN_TEXT or IFUNC_UNRESOLVED; what a glob
    matches but cannot be resolved is left out (`resolve_all` tells).
    """
    return resolve_all(modules, where, read, everywhere=everywhere).locations


def resolve_all(
    modules: Sequence[Module],
    where: Where,
    read: Reader,
    *,
    everywhere: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Resolution:
    """As `resolve`, with what was left out. Raises when nothing is left.

    `progress` is called with (modules done, modules in all) while a glob is looked for.
    """
    candidates = _candidates(modules, where)
    if where.symbol is None:
        return Resolution([_at_address(module, where) for module in candidates], [])
    found: list[tuple[Module, Function]] = []
    for module in candidates:
        functions = functions_named(module, where.symbol)
        if len(functions) > 1:
            raise ProbeError(str(where), errors.AMBIGUOUS, _list_functions(module, functions))
        found += [(module, function) for function in functions]
        if found and where.module is None:
            break
    if found:
        return Resolution([_locate(modules, *pair, where, read) for pair in found], [])
    if _is_glob(where.symbol):
        resolution = _resolve_glob(modules, candidates, where, read, everywhere, progress)
        if resolution.locations:
            return resolution
        if resolution.refused:
            raise resolution.refused[0]
    raise ProbeError(str(where), errors.NO_SUCH_SYMBOL, _suggestion(candidates, where))


def _resolve_glob(
    modules: Sequence[Module],
    candidates: Sequence[Module],
    where: Where,
    read: Reader,
    everywhere: bool,
    progress: Callable[[int, int], None] | None,
) -> Resolution:
    locations: dict[int, Location] = {}
    refused: list[ProbeError] = []
    for number, module in enumerate(candidates):
        if progress is not None:
            progress(number, len(candidates))
        for function in functions_matching(module, where.symbol or ""):
            try:
                location = _locate(modules, module, function, where, read)
            except ProbeError as error:
                refused.append(error)
            else:
                # memcpy and memmove may share a variant: one probe is enough.
                locations.setdefault(location.address, location)
        if locations and where.module is None and not everywhere:
            break
    return Resolution(list(locations.values()), refused)


def functions_named(module: Module, name: str) -> list[Function]:
    """The functions of one module that an exact name stands for."""
    return [] if names.is_only_glob(name) else _mapped(module, module.functions.named(name))


def functions_matching(module: Module, glob: str) -> list[Function]:
    """The functions of one module that a glob stands for."""
    return _mapped(module, module.functions.matching(glob))


def _mapped(module: Module, functions: list[Function]) -> list[Function]:
    """Without those in parts of the file that are not mapped here."""
    if module.is_whole:
        return functions
    return [function for function in functions if module.bias + function.start in module]


def data_address(modules: Sequence[Module], module_glob: str | None, symbol: str, offset: int = 0) -> int:
    """The run-time address of a variable (or, where there is none, of a function) plus `offset`.

    Raises ProbeError NO_SUCH_MODULE, NO_SUCH_VARIABLE, AMBIGUOUS, or NOT_SUPPORTED for a thread-local one.
    """
    text = f"@{module_glob}:{symbol}" if module_glob else f"@{symbol}"
    for module in modules_named(modules, module_glob, text):
        data = find_data(module.elf, symbol)
        if data is not None:
            if data.type == STT_TLS:
                raise ProbeError(text, errors.NOT_SUPPORTED, f"{text} is a thread-local variable")
            return module.bias + data.address + offset
        functions = module.functions.named(symbol)
        if len(functions) > 1:
            raise ProbeError(text, errors.AMBIGUOUS, _list_functions(module, functions))
        if functions:
            return module.bias + functions[0].start + offset
    raise ProbeError(text, errors.NO_SUCH_VARIABLE, text)


class Symbolizer:
    """Names for run-time addresses; remembers what it has looked up."""

    def __init__(self, modules: Sequence[Module], chosen: Mapping[int, str] | None = None) -> None:
        """`chosen`: what the functions that start at some addresses are to be called."""
        self.module = AddressIndex(modules).module
        self._chosen = {} if chosen is None else dict(chosen)
        self._names: dict[int, str] = {}

    def choose(self, start: int, name: str) -> None:
        """Call the function that starts at a run-time address by this one of its names."""
        if self._chosen.get(start) != name:
            self._chosen[start] = name
            self._names.clear()

    def name(self, address: int) -> str:
        """`malloc+0x4`; `libc.so.6:0x27b8a` where the file has no name; `0x7f0012345678` outside of files."""
        name = self._names.get(address)
        if name is None:
            name = self._look_up(address)
            if len(name) <= 1024:  # Hostile names would fill the memory.
                if len(self._names) >= 1 << 16:
                    self._names.clear()
                self._names[address] = name
        return name

    def _look_up(self, address: int) -> str:
        module = self.module(address)
        if module is None:
            return f"{address:#x}"
        own = address - module.bias
        function = module.functions.containing(own) if module.elf.in_text(own) else None
        if function is None:
            return f"{module.name}:{own:#x}"
        name = self._chosen.get(function.start + module.bias) or _qualified(module, function)
        return f"{name}+{own - function.start:#x}"


def symbolize(modules: Sequence[Module], address: int) -> str:
    """`Symbolizer.name` for a single address."""
    return Symbolizer(modules).name(address)


def _is_glob(symbol: str) -> bool:
    return any(character in symbol for character in "*?[")


def _candidates(modules: Sequence[Module], where: Where) -> list[Module]:
    found = modules_named(modules, where.module, str(where))
    return found[:1] if where.module is None and where.symbol is None else found


def modules_named(modules: Sequence[Module], glob: str | None, subject: str) -> list[Module]:
    """The modules that a glob stands for (None: all), by the strictest of their names that any of them has.

    Raises ProbeError, about `subject`: NO_SUCH_MODULE, or AMBIGUOUS if a plain name stands for several.
    """
    if glob is None:
        return list(modules)
    for looseness in range(4):
        found = [module for module in modules if module.matches(glob, looseness)]
        if not _is_glob(glob):
            found = [module for module in found if module.is_whole] or found
        if len(found) > 1 and (not _is_glob(glob) or any(module.name == glob for module in found)):
            listed = _shown([clean(module.path) for module in found])
            raise ProbeError(subject, errors.AMBIGUOUS, f"several modules are called {glob}: {listed}")
        if found:
            return found
    close = names.close_names(
        glob, [form for module in modules for form in (module.name, module.name.partition(".so")[0])]
    )
    raise ProbeError(subject, errors.NO_SUCH_MODULE, f"{glob}{_did_you_mean(close)}")


def _at_address(module: Module, where: Where) -> Location:
    if not module.elf.in_text(where.offset):
        raise ProbeError(str(where), errors.NOT_IN_TEXT, f"{where.offset:#x} in {module.name}")
    function = module.functions.containing(where.offset)
    address = module.bias + where.offset
    if function is None:
        return Location(module, None, module.name, where.offset, address)
    return Location(module, function, function.name, where.offset - function.start, address)


def _locate(
    modules: Sequence[Module], module: Module, function: Function, where: Where, read: Reader
) -> Location:
    note = None
    symbol = function.name
    if function.kind == "ifunc":
        variant = chosen_variant(modules, module, function, read)
        if variant is None:
            raise ProbeError(_subject(where, symbol), errors.IFUNC_UNRESOLVED, f"{symbol} in {module.name}")
        module, function = variant
        note = f"{symbol} is an IFUNC: {_qualified(module, function)}"
    if where.offset >= function.end - function.start:
        detail = f"{function.name} has {function.end - function.start:#x} bytes"
        raise ProbeError(_subject(where, symbol), errors.OFFSET_OUTSIDE, detail)
    address = module.bias + function.start + where.offset
    return Location(module, function, symbol, where.offset, address, note)


def _subject(where: Where, symbol: str) -> str:
    """What an error is about: the text of the user, or the function that a glob found."""
    if where.symbol is None or not _is_glob(where.symbol):
        return str(where)
    return f"{symbol}+{where.offset:#x}" if where.offset else symbol


def _qualified(module: Module, function: Function) -> str:
    """The name, with the module where the name means nothing without it."""
    return f"{module.name}:{function.symbol}" if function.is_unnamed else function.name


def _list_functions(module: Module, functions: Sequence[Function]) -> str:
    """Names by which each of several functions can be asked for."""
    shown = [function.name for function in functions]
    if len(set(shown)) < len(shown):
        shown = [function.symbol for function in functions]
    if len(set(shown)) < len(shown):
        shown = [f"{module.name}:{function.start:#x}" for function in functions]
    return _shown(shown)


def _shown(listed: Sequence[str]) -> str:
    rest = len(listed) - _MOST_NAMES_SHOWN
    text = ", ".join(listed[:_MOST_NAMES_SHOWN])
    return f"{text} and {rest} more" if rest > 0 else text


def _did_you_mean(close: Sequence[str]) -> str:
    return f". Did you mean {' or '.join(close)}?" if close else ""


def _suggestion(modules: Sequence[Module], where: Where) -> str:
    symbol = where.symbol or ""
    place = f" in {modules[0].name}" if len(modules) == 1 else ""
    if names.is_part(symbol):
        return f"{symbol}{place} is a part of a function that is only jumped into"
    if _is_glob(symbol):
        return f"{symbol}{place}{_damage(modules)}"
    notes = [f"{module.name}: {module.note}" for module in modules if module.note]
    if len(modules) == 1 and notes:
        return f"{symbol} in {notes[0]}"
    for module in modules:
        if find_data(module.elf, symbol) is not None:
            return f"{symbol} in {module.name} is a variable"
    close: list[str] = []
    for module in modules:
        close += [name for name in module.functions.close_names(symbol) if name not in close]
    return f"{symbol}{place}{_did_you_mean(names.close_names(symbol, close))}{_damage(modules)}"


def _damage(modules: Sequence[Module]) -> str:
    """Why a name may be missing."""
    return "".join(f"; {each.name} is damaged: {damage}" for each in modules if (damage := each.elf.damage))
