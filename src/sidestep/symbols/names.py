"""Rules about symbol names: clones, what a readable name must leave in its mangled form, close names."""

from __future__ import annotations

import re
from collections.abc import Iterable

_CLONE = re.compile(r"\.(?:cold|warm|part|__part|isra|constprop)(?=\.|$)")
_PART = re.compile(r"\.(?:cold|warm)(?=\.|$)")
_RENAMED = re.compile(r"\.(?:llvm|lto_priv)\.\d+$")
_SUFFIX = re.compile(rf"{_CLONE.pattern}.*|(?<=\w)<.*>$")
_WORD = re.compile(r"\w+")

# Words that demanglers write although the mangled name does not hold them as they are.
_EXPANSIONS = (
    "std allocator basic_string string char_traits basic_istream basic_ostream basic_iostream istream "
    "ostream iostream unsigned signed char short int long float double bool void wchar_t char8_t "
    "char16_t char32_t __int128 __float128 decimal32 decimal64 decimal128 half auto decltype nullptr_t "
    "const volatile restrict operator new delete co_await sizeof alignof noexcept throw typeid "
    "dynamic_cast static_cast const_cast reinterpret_cast true false this virtual non covariant "
    "override return thunk to vtable VTT construction in typeinfo name for guard variable reference "
    "temporary transaction clone global constructors destructors keyed TLS init function wrapper "
    "anonymous namespace lambda unnamed type block_literal string literal complex imaginary isize usize "
    "i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f16 f32 f64 f128 str as impl dyn mut extern unsafe fn "
    "closure shim vtable crate C offset struct union enum class typename template requires _Float16 "
    "__bf16 bfloat16_t __vector static"
)


def is_part(name: str) -> bool:
    """Whether it names a piece of a function that is only jumped into (`.cold`): never an entry."""
    return "." in name and _PART.search(name) is not None


def is_clone(name: str) -> bool:
    """Whether a compiler made it from another function (`.isra.0`, `.constprop.0`, `.part.0`, `.cold`)."""
    return "." in name and _CLONE.search(name) is not None


def without_renaming(name: str) -> str:
    """Without the suffix that link-time optimisation gives to static functions (`.llvm.1`, `.lto_priv.0`)."""
    return _RENAMED.sub("", name) if "." in name else name


def is_only_glob(name: str) -> bool:
    """Whether it can only be a glob: readable names hold these characters in parameters, and in operators."""
    return ("*" in name or "?" in name) and not any(mark in name for mark in ("(", "<", "operator"))


def needles(readable: str) -> tuple[str, ...]:
    """Pieces that the mangled form of every name like `readable` (a name or a glob) must hold; longest first.

    Identifiers stand in mangled names as they are; only what the manglings abbreviate does not.
    """
    if not readable.isascii():
        return ()  # Rust writes such identifiers in punycode.
    # What stands in brackets may be a glob's set of characters, in braces what the demangler words itself.
    text = re.sub(r"\[[^\]]*\]|\{[^}]*\}", " ", readable)
    words = {word for word in _WORD.findall(text) if len(word) > 1 and word not in _EXPANSIONS}
    return tuple(
        sorted((word for word in words if not word[0].isdigit()), key=lambda word: (-len(word), word))
    )


def close_names(name: str, candidates: Iterable[str], most: int = 3) -> list[str]:
    """The candidates that somebody who typed `name` may have meant, best first."""
    import difflib  # Only needed for a message.

    folded = name.lower().strip("_")
    near: dict[str, list[str]] = {}
    for candidate in candidates:
        key = _SUFFIX.sub("", candidate).lower().strip("_")
        if abs(len(key) - len(folded)) <= max(2, len(folded) // 4) and (
            key[:1] == folded[:1] or key[1:3] == folded[1:3] or key[-2:] == folded[-2:]
        ):
            near.setdefault(key, [])
            if len(near[key]) < most and candidate not in near[key]:
                near[key].append(candidate)
        if len(near) >= 20_000:
            break
    found: list[str] = []
    best = 0.0
    for key in difflib.get_close_matches(folded, near, n=most, cutoff=0.7):
        ratio = difflib.SequenceMatcher(None, folded, key).ratio()
        best = best or ratio
        if ratio > best - 0.1:
            found += sorted(near[key], key=len)
    return found[:most]
