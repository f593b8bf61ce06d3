"""Fetch arguments: `[NAME=]FETCH[:TYPE]`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sidestep.spec.cursor import NUMBER_HINT, Cursor
from sidestep.spec.nodes import (
    STRING,
    Argument,
    BitField,
    Comm,
    Dereference,
    Fetch,
    FetchArgument,
    FetchType,
    Immediate,
    Kind,
    Memory,
    Register,
    ReturnValue,
    StackPointer,
    StackSlot,
    SymbolMemory,
    TypeKind,
    default_type,
)
from sidestep.spec.registers import PARTS, REGISTERS
from sidestep.spec.where import split_module
from sidestep.spec.words import DATA_MODULE, DATA_SYMBOL, FOREIGN_TYPES, TYPE, did_you_mean, looks_like_type

MAX_DEPTH = 16  # dereferences inside each other
MAX_ELEMENTS = 256  # of an array
MAX_ARGUMENT_NUMBER = 128
MAX_STACK_SLOT = 65535
_LOWEST_OFFSET, _HIGHEST_OFFSET = -(1 << 31), (1 << 31) - 1

_NAME = re.compile(r"([A-Za-z_]\w*)=(?!=)", re.ASCII)
_BAD_NAME = re.compile(r"([^ =%$@\\+(:\"]+)=(?!=)")
_REGISTER = re.compile(r"%([A-Za-z]\w*)?", re.ASCII)
_VARIABLE = re.compile(r"\$([A-Za-z_]\w*\*?)?", re.ASCII)
_NUMBERED = re.compile(r"(arg|stack)([0-9]+)", re.ASCII)
_BARE_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SIGN = re.compile(r"[+-](u?)")
_SIGNED_OFFSET = re.compile(r"[+-](?=[0-9])")
_TYPE_WORD = re.compile(r"[\w\[\]*@/]*", re.ASCII)
_VECTOR = re.compile(r"[xyz]?mm[0-9]+|st[0-9]?|k[0-7]", re.ASCII)

_MEMORY = (Memory, SymbolMemory, Dereference)
_FETCH_HINT = "a fetch argument starts with one of % $ @ + - \\"
_REGISTER_HINT = "one of %ax %bx %cx %dx %si %di %bp %sp %r8 .. %r15 %ip %flags"
_VARIABLE_HINT = "one of $argN $retval $stackN $stack $comm"
_VARIABLES = ("arg1", "arg2", "retval", "stack", "stack0", "comm")


@dataclass(frozen=True, slots=True)
class Site:
    """What a fetch argument may rely on: the kind of the probe, and the offset behind a symbol."""

    kind: Kind
    offset: int


def take_argument(cursor: Cursor, site: Site, position: int) -> FetchArgument:
    """The fetch argument at the cursor, the `position`-th of its probe, counted from 1."""
    start = cursor.position
    name = cursor.take(_NAME)
    if name is None and (bad := cursor.peek(_BAD_NAME)) is not None:
        raise cursor.error(f"{bad.group(1)!r} cannot be a name", "names have letters, digits and _ only")
    if name is None and cursor.next() == "=":
        raise cursor.error("no blank can stand before =", "as in size=$arg1")
    fetch, type = take_typed(cursor, site)
    if not cursor.at_word_end():
        hint = "blanks stand between arguments"
        raise cursor.error(f"a fetch argument cannot go on with {cursor.word!r}", hint)
    return FetchArgument(name.group(1) if name else f"arg{position}", fetch, type, column=start)


def take_typed(cursor: Cursor, site: Site) -> tuple[Fetch, FetchType]:
    """FETCH[:TYPE] at the cursor. A string in a register is read where the register points to."""
    fetch = _take_fetch(cursor, site, 0)
    column = cursor.position + 1
    if not cursor.take_text(":"):
        return fetch, default_type(fetch)
    type = _take_type(cursor)
    if isinstance(fetch, Comm):
        if type != STRING:
            raise cursor.error("$comm is a string and can have no other type", column=column)
    elif not isinstance(fetch, _MEMORY):
        if type.count is not None:
            hint = f"what {fetch} points to is +0({fetch}):{type}"
            raise cursor.error("only memory can be an array", hint, column)
        if type.kind == "string":
            fetch = Dereference(0, fetch, column=fetch.column)
    return fetch, type


def _take_fetch(cursor: Cursor, site: Site, depth: int) -> Fetch:
    if depth > MAX_DEPTH:
        raise cursor.error(f"more than {MAX_DEPTH} dereferences inside each other")
    match cursor.next():
        case "%":
            return _take_register(cursor)
        case "$":
            return _take_variable(cursor, site)
        case "@":
            return _take_memory(cursor)
        case "\\":
            column = cursor.position
            cursor.position += 1
            if cursor.next() == '"':
                raise cursor.error("a constant must be a number")
            return Immediate(cursor.signed_number("a constant"), column=column)
        case "+" | "-":
            return _take_dereference(cursor, site, depth)
    word = cursor.peek(_BARE_WORD)
    hint = _FETCH_HINT
    if word is not None and word.group() in REGISTERS:
        hint = f"Did you mean %{word.group()}?"
    elif word is not None and (word.group() in _VARIABLES or _NUMBERED.fullmatch(word.group())):
        hint = f"Did you mean ${word.group()}?"
    raise cursor.error(f"expected a fetch argument, {cursor.found}", hint)


def _take_register(cursor: Cursor) -> Register:
    column = cursor.position
    match = cursor.take(_REGISTER)
    name = match.group(1) if match else None
    if name is None:
        raise cursor.error("a register name is missing behind %", "as in %di", column)
    if name in REGISTERS:
        return Register(REGISTERS[name], column=column)
    lowered = name.lower()
    if lowered in REGISTERS:
        hint = f"Did you mean %{lowered}?"
    elif lowered in PARTS:
        whole, type = PARTS[lowered]
        raise cursor.error(f"%{name} is a part of a register", f"write %{whole}:{type}", column)
    elif _VECTOR.fullmatch(lowered):
        hint = "only general registers, %ip and %flags can"
        raise cursor.error(f"%{name} cannot be fetched", hint, column)
    else:
        hint = did_you_mean(name, REGISTERS, "%") or _REGISTER_HINT
    raise cursor.error(f"unknown register %{name}", hint, column)


def _take_variable(cursor: Cursor, site: Site) -> Fetch:
    column = cursor.position
    match = cursor.take(_VARIABLE)
    name = (match.group(1) if match else None) or ""
    numbered = _NUMBERED.fullmatch(name)
    if numbered is not None:
        what, digits = numbered.groups()
        digits_column = column + 1 + len(what)
        if what == "stack":
            slot = cursor.number_from(digits, digits_column, "a stack slot", 0, MAX_STACK_SLOT)
            return StackSlot(slot, column=column)
        if digits == "0":
            raise cursor.error("arguments are counted from 1", "Did you mean $arg1?", column)
        number = cursor.number_from(digits, digits_column, "an argument number", 1, MAX_ARGUMENT_NUMBER)
        if site.offset:
            hint = "name the register, like %di"
            message = f"${name} is known at the start of a function only, not at +{site.offset:#x}"
            raise cursor.error(message, hint, column)
        return Argument(number, column=column)
    match name:
        case "stack":
            return StackPointer(column=column)
        case "comm":
            return Comm(column=column)
        case "retval" if site.kind == "r":
            return ReturnValue(column=column)
        case "retval":
            raise cursor.error("only a return probe has $retval", "a return probe starts with r:", column)
        case "":
            raise cursor.error("a name is missing behind $", _VARIABLE_HINT, column)
    if name in REGISTERS:
        hint = f"Did you mean %{name}?"
    elif name in ("ret", "return", "rv", "result"):
        hint = "Did you mean $retval?"
    elif name.startswith("arg"):
        hint = "arguments are $arg1, $arg2 and so on"
    else:
        hint = did_you_mean(name, _VARIABLES, "$") or _VARIABLE_HINT
    raise cursor.error(f"unknown variable ${name}", hint, column)


def _take_memory(cursor: Cursor) -> Memory | SymbolMemory:
    column = cursor.position
    cursor.position += 1
    module: str | None
    if cursor.next().isdecimal():
        return Memory(cursor.number("an address", 0), column=column)
    if cursor.next() == '"':
        value, columns = cursor.quoted()
        module, symbol, first = split_module(cursor, value, columns)
        if not symbol:
            raise cursor.error("a variable name is missing", column=columns[first])
    else:
        module, symbol = _take_data_symbol(cursor)
    offset = 0
    sign = cursor.take(_SIGNED_OFFSET)
    if sign is not None:
        cursor.position -= 1
        offset = cursor.signed_number("an offset", _LOWEST_OFFSET, _HIGHEST_OFFSET)
    elif cursor.next() in ("+", "-"):
        cursor.position += 1
        raise cursor.error("expected an offset in bytes after the sign", NUMBER_HINT)
    return SymbolMemory(module, symbol, offset, column=column)


def _take_data_symbol(cursor: Cursor) -> tuple[str | None, str]:
    """[MODULE:]SYMBOL without quotes; what follows a colon is rather a type if it looks like one."""
    module = None
    prefix = cursor.peek(DATA_MODULE)
    end = prefix.end() if prefix is not None else 0
    if prefix is not None and DATA_SYMBOL.match(cursor.text, end) and not looks_like_type(cursor.text, end):
        module = prefix.group(1)
        cursor.position = end
    symbol = cursor.take(DATA_SYMBOL)
    if symbol is None:
        hint = "as in @0x4040 or @environ"
        raise cursor.error("expected an address or the name of a variable behind @", hint)
    return module, symbol.group()


def _take_dereference(cursor: Cursor, site: Site, depth: int) -> Dereference:
    column = cursor.position
    match = cursor.take(_SIGN)
    sign = -1 if cursor.text[column] == "-" else 1
    if cursor.next() == "(":
        example = cursor.text[column : cursor.position]
        raise cursor.error("an offset is missing before the parenthesis", f"for none, write {example}0(")
    offset = cursor.number("an offset", _LOWEST_OFFSET, _HIGHEST_OFFSET, sign=sign)
    offset_text = cursor.text[column : cursor.position]
    if not cursor.take_text("("):
        raise cursor.error(f"expected ( behind the offset, {cursor.found}", f"as in {offset_text[:24]}(%di)")
    opened = cursor.position - 1
    inner = _take_fetch(cursor, site, depth + 1)
    if isinstance(inner, Comm):
        raise cursor.error("$comm is no address", column=inner.column)
    if cursor.at_end():
        raise cursor.error("this parenthesis is not closed", column=opened)
    if cursor.next() == ":":
        hint = f"as in {offset_text[:24]}({inner}):u32"
        raise cursor.error("a type stands behind the last parenthesis", hint)
    if not cursor.take_text(")"):
        raise cursor.error(f"expected ), {cursor.found}", "inside the parentheses stands one fetch argument")
    return Dereference(offset, inner, match is not None and match.group(1) == "u", column=column)


def _take_type(cursor: Cursor) -> FetchType:
    column = cursor.position
    match = cursor.take(TYPE)
    if match is None:
        raise _unknown_type(cursor)
    count = None
    if match["count"] is not None:
        what = "the length of an array"
        count = cursor.number_from(match["count"], match.start("count"), what, 1, MAX_ELEMENTS)
    if match["width"] is not None:
        if count is not None:
            raise cursor.error("an array of bit fields is not supported", column=match.start("count") - 1)
        return _bit_field(cursor, match, column)
    if match["word"] == "symbol":
        return FetchType("symbol", 64, count, column=column)
    if match["word"] is not None:  # ustring, too: in a process all memory is user memory
        if count is not None:
            hint = "fetch each string: +0(+8(%di)):string"
            raise cursor.error("an array of strings is not supported", hint, match.start("count") - 1)
        return FetchType("string", 8, column=column)
    kinds: dict[str, TypeKind] = {"u": "u", "s": "s", "x": "x"}
    return FetchType(kinds[match["kind"]], int(match["bits"]), count, column=column)


def _bit_field(cursor: Cursor, match: re.Match[str], column: int) -> FetchType:
    container = int(match["container"])
    what = "a bit field"
    width = cursor.number_from(match["width"], match.start("width"), what, 1, container)
    offset = cursor.number_from(match["offset"], match.start("offset"), what, 0, container - 1)
    if width + offset > container:
        message = f"{width} bits from bit {offset} are more than {container}"
        raise cursor.error(message, f"width and offset together are at most {container}", column)
    return FetchType("u", container, None, BitField(width, offset, container, column=column), column=column)


def _unknown_type(cursor: Cursor) -> Exception:
    match = cursor.peek(_TYPE_WORD)
    word = match.group() if match else ""
    if not word:
        return cursor.error("a type is missing behind the colon", "as in :u32, :s64, :x8, :string")
    base = word.split("[")[0].rstrip("*")
    types = [f"{kind}{bits}" for kind in "usx" for bits in (8, 16, 32, 64)] + ["string", "symbol"]
    if "*" in word and base == "char":
        hint = "Did you mean string?"
    elif base in types:
        hint = f"an array is {base}[N]" if "[" in word else f"Did you mean {base}?"
    elif base[:1] == "b" and ("@" in base or base[1:].isdigit()):
        hint = "a bit field is b<width>@<offset>/<container>, as in b4@8/32"
    elif base.lower() in FOREIGN_TYPES or base.lower() in types:
        hint = f"Did you mean {FOREIGN_TYPES.get(base.lower(), base.lower())}?"
    elif base[:1] in "usx" and base[1:].isdigit():
        hint = "the sizes are 8, 16, 32 and 64 bits"
    else:
        hint = did_you_mean(base, types) or "one of u8 .. u64, s8 .. s64, x8 .. x64, string, symbol, b4@0/32"
    shown = word if len(word) <= 40 else f"{word[:37]}..."
    return cursor.error(f"unknown type {shown!r}", hint)
