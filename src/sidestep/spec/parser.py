"""A whole probe text: `[p|r[MAX]:][[GROUP/]EVENT ]WHERE [FETCHARG...] [if CONDITION]`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sidestep.spec.condition import take_condition
from sidestep.spec.cursor import Cursor
from sidestep.spec.fetch import Site, take_argument
from sidestep.spec.nodes import FetchArgument, Kind, Where
from sidestep.spec.probe import ProbeSpec
from sidestep.spec.where import (
    ARGUMENT_START,
    CONDITION_START,
    WHERE_HINT,
    decode_where,
    take_token,
    take_where,
    where_text,
)

MAX_ARGUMENTS = 128
MAX_MAXACTIVE = 65536
MAX_NAME = 64  # characters of a group, an event or an argument

_PREFIX = re.compile(r"([pr])([0-9]*):(?!:(?!:))")
_KERNEL_PREFIX = re.compile(r"(p|r)((?<=r)[0-9]+)?(?= )")
_EVENT = re.compile(r"(?:([A-Za-z_][\w\-]*)/)?([A-Za-z_]\w*)", re.ASCII)


def parse(text: str) -> ProbeSpec:
    """The meaning of a probe text.

    Raises ProbeSyntaxError with the column of what is wrong, for every text that is no probe.
    """
    cursor = Cursor(text)
    cursor.skip_blanks()
    kind, maxactive = _take_prefix(cursor)
    cursor.skip_blanks()
    if cursor.at_end():
        raise cursor.error("the place to probe is missing", WHERE_HINT)
    group, event, where = _take_event_and_where(cursor)
    if kind == "r" and where.symbol is not None and where.offset:
        hint = "leave the offset out, or use p:"
        raise cursor.error("a return probe belongs to the start of a function", hint, where.offset_column)
    site = Site(kind, where.offset if where.symbol is not None else 0)
    arguments = _take_arguments(cursor, site)
    condition = None
    if cursor.take(CONDITION_START):
        condition = take_condition(cursor, site, arguments)
    return ProbeSpec(kind, maxactive, group, event, where, arguments, condition, text=cursor.text)


def parse_where(text: str) -> Where:
    """The meaning of a text that is a WHERE and nothing else; it needs no quotes.

    Raises ProbeSyntaxError as `parse` does.
    """
    cursor = Cursor(text)
    cursor.skip_blanks()
    start = cursor.position
    if cursor.at_end():
        raise cursor.error("the place to probe is missing", WHERE_HINT)
    if cursor.next() == '"':
        where = take_where(cursor)
        cursor.skip_blanks()
        if not cursor.at_end():
            raise cursor.error(f"expected nothing more, {cursor.found}")
        return where
    value = cursor.text[start:].rstrip()
    return decode_where(cursor, start, value, range(start, start + len(value) + 1), quoted=False)


def format_spec(spec: ProbeSpec) -> str:
    """The canonical text of a probe: `parse` gives an equal ProbeSpec for it."""
    prefix = f"{spec.kind}{spec.maxactive or ''}:"
    event = (
        ""
        if spec.event is None
        else f"{spec.event} "
        if spec.group is None
        else f"{spec.group}/{spec.event} "
    )
    words = [f"{prefix}{event}{where_text(spec.where)}", *map(str, spec.arguments)]
    if spec.condition is not None:
        words += ["if", str(spec.condition)]
    return " ".join(words)


def _take_prefix(cursor: Cursor) -> tuple[Kind, int | None]:
    """`p:`, `r:` or `rMAX:`; or without the colon, as the kernel has it, when two more words follow."""
    start = cursor.position
    match = cursor.take(_PREFIX)
    if match is None:
        match = cursor.peek(_KERNEL_PREFIX)
        if match is None or _following(cursor, match.end()) is None:
            return "p", None
        cursor.position = match.end()
    kind: Kind = "r" if match.group(1) == "r" else "p"
    if not match.group(2):
        return kind, None
    if kind == "p":
        raise cursor.error("only a return probe has a maximum of active calls", "as in r20:malloc", start + 1)
    return kind, cursor.number_from(
        match.group(2), start + 1, "the maximum of active calls", 0, MAX_MAXACTIVE
    ) or None


def _following(cursor: Cursor, position: int) -> int | None:
    """Where an event or a WHERE may start behind the blanks at `position`; None if something else follows."""
    text = cursor.text
    while text.startswith(" ", position):
        position += 1
    if position >= len(text) or ARGUMENT_START.match(text, position) or CONDITION_START.match(text, position):
        return None
    return position


def _take_event_and_where(cursor: Cursor) -> tuple[str | None, str | None, Where]:
    """A word is WHERE if it stands alone or before a fetch argument or a condition, else it is EVENT."""
    start = cursor.position
    token = take_token(cursor)
    following = _following(cursor, cursor.position)
    group = event = None
    if following is not None:
        group, event = _event(cursor, start, token, following)
        cursor.position = start = following
        token = take_token(cursor)
    if not token[2] and ARGUMENT_START.match(cursor.text, start):
        raise cursor.error("the place to probe is missing before the fetch arguments", WHERE_HINT, start)
    where = decode_where(cursor, start, *token)
    return group, event, where


def _event(
    cursor: Cursor, start: int, token: tuple[str, Sequence[int], bool], following: int
) -> tuple[str | None, str]:
    """GROUP and EVENT from the word at `start`, which is followed by something that may be WHERE."""
    word, _, quoted = token
    match = _EVENT.fullmatch(word)
    if match is not None and not quoted:
        group, event = match.groups()
        for name in (group, event):
            if name is not None and len(name) > MAX_NAME:
                raise cursor.error(f"a name has at most {MAX_NAME} characters", column=start)
        return group, event
    if re.fullmatch(r"[\w\-]+/[\w\-]*", word, re.ASCII) and not quoted:
        raise cursor.error(f"{word[:40]!r} is no event name", "as in mygroup/myevent", start)
    # The word cannot be an event, so it is WHERE, and what follows is a broken fetch argument.
    cursor.position = following
    if cursor.next() == "=":
        raise cursor.error("a blank cannot stand before =", "as in size=$arg1")
    example = re.match(r"[A-Za-z_]\w*", cursor.word, re.ASCII)
    hint = "a fetch argument starts with NAME= or one of % $ @ + - \\, a condition with `if`"
    if example is not None and cursor.text.startswith(" =", following + example.end()):
        hint = f"no blank before =: {example.group()}=..."
    raise cursor.error(f"expected a fetch argument, {cursor.found}", hint)


def _take_arguments(cursor: Cursor, site: Site) -> tuple[FetchArgument, ...]:
    arguments: dict[str, FetchArgument] = {}
    cursor.skip_blanks()
    while not cursor.at_end() and cursor.peek(CONDITION_START) is None:
        if len(arguments) == MAX_ARGUMENTS:
            raise cursor.error(f"a probe has at most {MAX_ARGUMENTS} fetch arguments")
        argument = take_argument(cursor, site, len(arguments) + 1)
        if argument.name in arguments:
            hint = "unnamed arguments are arg1, arg2 ..; give each a name: NAME=..."
            message = f"two arguments are named {argument.name[:40]!r}"
            raise cursor.error(message, hint, argument.column)
        if len(argument.name) > MAX_NAME:
            raise cursor.error(f"a name has at most {MAX_NAME} characters", column=argument.column)
        arguments[argument.name] = argument
        cursor.skip_blanks()
    return tuple(arguments.values())
