"""How names, types and quoted words are spelled, and what was probably meant by a misspelt one."""

from __future__ import annotations

import re
from collections.abc import Iterable

# [MODULE:]SYMBOL behind `@`, where it needs no quotes.
DATA_SYMBOL = re.compile(r"[A-Za-z_.~](?:[\w.$~]|@(?=[A-Za-z_@]))*(?:::[\w.$~]+)*", re.ASCII)
DATA_MODULE = re.compile(r"([\w.+\-]+):(?!:)", re.ASCII)

# MODULE: in front of a symbol: up to the first colon, which must be a single one (or one before `::`). It may
# be a glob with [sets] and is otherwise free of brackets: those belong to a C++ name (`f[abi:cxx11]`).
MODULE = re.compile(r"((?:[^:\[\](){}<>]|\[[^\]:]*\])*):(?!:(?!:))")

# A type as it is, and words that people bring from elsewhere with the type that they mean.
TYPE = re.compile(
    r"(?:(?P<kind>[usx])(?P<bits>8|16|32|64)|(?P<word>u?string|symbol)"
    r"|b(?P<width>[0-9]+)@(?P<offset>[0-9]+)/(?P<container>8|16|32|64))"
    r"(?:\[(?P<count>[0-9]+)\])?(?![\w@/\[\]])",
    re.ASCII,
)
FOREIGN_TYPES = {
    "char": "s8", "short": "s16", "int": "s32", "long": "s64", "unsigned": "u32", "uint": "u32",
    "ulong": "u64",
    "i8": "s8", "i16": "s16", "i32": "s32", "i64": "s64", "int8_t": "s8", "int16_t": "s16", "int32_t": "s32",
    "int64_t": "s64", "uint8_t": "u8", "uint16_t": "u16", "uint32_t": "u32", "uint64_t": "u64",
    "size_t": "u64", "ssize_t": "s64", "bool": "u8", "byte": "u8", "hex": "x64", "ptr": "x64",
    "pointer": "x64", "str": "string", "cstring": "string", "sym": "symbol", "symstr": "symbol",
    "symbols": "symbol", "u": "u64", "s": "s64", "x": "x64",
}  # fmt: skip
_TYPE_LIKE = re.compile(r"[usx][0-9]+(?![\w.$:])|b[0-9]+@|(?:u?string|symbol)(?![\w.$:])", re.ASCII)
_WORD = re.compile(r"\w+(?![\w.$:])", re.ASCII)


def looks_like_type(text: str, position: int = 0) -> bool:
    """Whether the word at `position` is meant as a type rather than as a symbol, behind a colon."""
    if _TYPE_LIKE.match(text, position):
        return True
    word = _WORD.match(text, position)
    return word is not None and word.group() in FOREIGN_TYPES


def needs_no_quotes(module: str | None, symbol: str) -> bool:
    """Whether `[MODULE:]SYMBOL` can stand behind `@` as it is."""
    if DATA_SYMBOL.fullmatch(symbol) is None:
        return False
    if module is None:
        return True
    return DATA_MODULE.fullmatch(f"{module}:") is not None and not looks_like_type(symbol)


def quote(text: str) -> str:
    """`text` between double quotes, with a backslash before each quote and backslash of its own."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def did_you_mean(word: str, names: Iterable[str], prefix: str = "") -> str:
    """A hint with the closest of `names`, or an empty one when none is close."""
    import difflib  # Only needed for a message.

    close = difflib.get_close_matches(word.lower()[:64], list(names), n=1, cutoff=0.6)
    return f"Did you mean {prefix}{close[0]}?" if close else ""
