"""C++ and Rust names made readable. The one file that knows the demangling library.

The library (multi-demangle) is written in memory-safe Rust and limits its recursion and its output, so that
it
runs in this process on names that nobody vouches for. It is imported when the first mangled name is shown or
looked up.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from sidestep.symbols.printable import clean

MANGLED = ("_Z", "_R")
"""What mangled names begin with."""
LONGEST_MANGLED = 4096
LONGEST_READABLE = 1 << 15
"""Longer names stay as they are."""

_RUST_LEGACY = re.compile(r"17h[0-9a-f]{16}E(?:\.|$)")
_THUNK = re.compile(r"_ZT(?:h(?:n?\d+_)|(v)(?:n?\d+_){2})")


class Demangled(NamedTuple):
    """The readable forms of one mangled name.

    full             with parameters and, for templates, the return type: `void ns::f<int>(int)`
    signature        with parameters only: `ns::f<int>(int)`
    plain            without parameters: `ns::f<int>`
    """

    full: str
    signature: str
    plain: str


def is_mangled(symbol: str) -> bool:
    """Whether the name has the form of the Itanium C++ ABI or of Rust (legacy or v0)."""
    return symbol[:2] in MANGLED and len(symbol) <= LONGEST_MANGLED


_known: dict[str, Demangled | None] = {}
_MOST_KNOWN = 1 << 14
_LONGEST_KNOWN = 1 << 10


def demangle(symbol: str) -> Demangled | None:
    """None for names that are not mangled, and for those that the library does not understand."""
    if symbol in _known:
        return _known[symbol]
    names = _demangle(symbol) if is_mangled(symbol) else None
    # Long names are not remembered: hostile ones would fill the memory.
    if len(symbol) <= _LONGEST_KNOWN and (names is None or len(names.full) <= _LONGEST_KNOWN):
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[symbol] = names
    return names


def _demangle(symbol: str) -> Demangled | None:
    thunk = _THUNK.match(symbol)
    if thunk is None:
        return _rendered(symbol)
    inner = _rendered("_Z" + symbol[thunk.end() :])
    prefix = "virtual thunk to " if thunk[1] else "non-virtual thunk to "
    return Demangled(*(prefix + name for name in inner)) if inner else None


def _rendered(symbol: str) -> Demangled | None:
    """What the library makes of a mangled name."""
    rust = symbol.startswith("_R") or _RUST_LEGACY.search(symbol) is not None
    render = _library()
    full = render(symbol, "full", rust)
    if full is None:
        return None
    if rust:
        return Demangled(full, full, full)
    signature, plain = render(symbol, "signature", rust) or full, render(symbol, "plain", rust) or full
    return Demangled(full, signature, plain.removesuffix(" const"))


def readable(symbol: str) -> str:
    """The name to show: with parameters, without a return type; the symbol itself if it is not mangled."""
    names = demangle(symbol)
    return names.signature if names else symbol


def squeezed(name: str) -> str:
    """The form in which readable names are compared: demanglers and people put blanks differently."""
    return name.replace(" ", "")


@lru_cache(maxsize=1)
def _library() -> Callable[[str, str, bool], str | None]:
    from multi_demangle import DemangleOptions, demangle_symbol

    options = {
        "full": DemangleOptions(return_type=True, parameters=True),
        "signature": DemangleOptions(return_type=False, parameters=True),
        "plain": DemangleOptions(return_type=False, parameters=False),
    }

    def render(symbol: str, form: str, rust: bool) -> str | None:
        try:
            text: str = demangle_symbol(symbol, options[form], language="rust" if rust else "cpp")
        except UnicodeEncodeError:
            return None
        except BaseException as error:
            # A panic in the library arrives as an exception that is no Exception.
            if type(error).__name__ == "PanicException":
                return None
            raise
        if text == symbol or len(text) > LONGEST_READABLE or "{recursion limit reached}" in text:
            return None
        return clean(text)

    return render
