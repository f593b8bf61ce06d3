"""WHERE: the token of a probe text that says which instruction, and what it stands for.

C++ and Rust names hold blanks, colons, brackets and operators. Between quotes everything belongs to the
name. Without quotes a name ends at the first blank outside brackets, and a blank that can only be part
of a C++ name (`operator new(..)`, `f(int) const`) does not end it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sidestep.errors import ProbeSyntaxError
from sidestep.spec.cursor import NUMBER_HINT, Cursor
from sidestep.spec.nodes import Where
from sidestep.spec.words import MODULE, quote

# The symbol of an operator function, behind the word `operator`: its < > ( ) [ ] are not brackets. A blank
# in front of template arguments belongs to it (`operator<< <char>`).
_OPERATOR = re.compile(
    r"(?<!\w)operator(?:"
    r'(?:<=>|<<=|>>=|->\*|&&|\|\||\+\+|--|<<|>>|->|\(\)|\[\]|""|[-+*/%^&|=!<>]=|[-+*/%^&|=!<>~,])'
    r'(?: (?=<)|(?<=") (?=\w))?'
    r"| (?:new|delete)\b(?:\[\])?"
    r"|(?! if\b) (?:(?! if\b)(?:\w|::|[<>,*& ])){1,200}?(?=\())"  # a conversion: operator unsigned long()
)
# What may stand behind a blank, after a parameter list or a part of a name.
_QUALIFIER = re.compile(r" (?:(?:const|volatile|noexcept)(?![^ \[])|&&?(?![^ \[])|\[clone [^\]]*\])")
_OPENING = {")": "(", "]": "[", "}": "{", ">": "<"}

# How a fetch argument starts, and a condition: what a word behind WHERE can be.
ARGUMENT_START = re.compile(r"[%$@+\-\\]|(?!operator=(?:[=( ]|$))[A-Za-z_]\w*=", re.ASCII)
CONDITION_START = re.compile(r"if(?= |\(|$)")

_OFFSET = re.compile(r"(?<=.)\+(0[xX][0-9a-fA-F]+|[0-9]+)$")
_BAD_OFFSET = re.compile(r"[\w.$@*?:~]*\w\+([0-9]\w*|\w*)$", re.ASCII)
_NEGATIVE_OFFSET = re.compile(r"(?<=\w)-(?:0[xX][0-9a-fA-F]+|[0-9]+)$", re.ASCII)
WHERE_HINT = "WHERE is [MODULE:]SYMBOL[+OFFSET] or [MODULE:]0xOFFSET, as in libc:malloc"
_QUOTE_HINT = 'a C++ name can stand between quotes: "ns::f(int, char)"'


def take_where(cursor: Cursor) -> Where:
    """The WHERE that starts at the cursor, which moves behind it."""
    start = cursor.position
    value, columns, quoted = take_token(cursor)
    return decode_where(cursor, start, value, columns, quoted)


def take_token(cursor: Cursor) -> tuple[str, Sequence[int], bool]:
    """Take a word that may be a WHERE: its characters, their columns and the end's, whether it was quoted."""
    start = cursor.position
    if cursor.next() != '"':
        cursor.position = _unquoted_end(cursor)
        return cursor.text[start : cursor.position], range(start, cursor.position + 1), False
    value, columns = cursor.quoted()
    tail_start = cursor.position
    if not cursor.at_word_end():
        if cursor.next() != "+":
            raise cursor.error(f"expected +OFFSET or a blank behind the quote, {cursor.found}")
        while not cursor.at_word_end():
            cursor.position += 1
        value += cursor.text[tail_start : cursor.position]
        columns = [*columns[:-1], *range(tail_start, cursor.position + 1)]
    return value, columns, True


def _unquoted_end(cursor: Cursor) -> int:
    """Where the unquoted word that starts at the cursor ends."""
    text, position = cursor.text, cursor.position
    closing = _closing_brackets(text, position)
    while position < len(text):
        operator = _OPERATOR.match(text, position)
        if operator is not None:
            position = operator.end()
        elif text[position] == " ":
            qualifier = _QUALIFIER.match(text, position)
            if qualifier is None or (text[position - 1] != ")" and "[" not in qualifier.group()):
                return position
            position = qualifier.end()
            while (more := _QUALIFIER.match(text, position)) is not None:
                position = more.end()
        elif position in closing:
            position = closing[position] + 1
        elif text[position] in "()":
            which = "opening" if text[position] == ")" else "closing"
            raise cursor.error(f"this parenthesis has no {which} one", _QUOTE_HINT, position)
        else:
            position += 1
    return position


def _closing_brackets(text: str, position: int) -> dict[int, int]:
    """The position of each opening bracket from `position` on that has a closing one, and of that one.

    `<` and `>` are brackets only in a balanced pair, and neither those of an operator nor that of `->`.
    """
    closing: dict[int, int] = {}
    opened: list[int] = []
    while position < len(text):
        operator = _OPERATOR.match(text, position)
        if operator is not None:
            position = operator.end()
            continue
        character = text[position]
        if character in "([{<":
            opened.append(position)
        elif character in ")]}":
            depth = len(opened)
            while depth and text[opened[depth - 1]] == "<":
                depth -= 1
            if depth and text[opened[depth - 1]] == _OPENING[character]:
                closing[opened[depth - 1]] = position
                del opened[depth - 1 :]
        elif character == ">" and opened and text[opened[-1]] == "<" and text[position - 1] != "-":
            closing[opened.pop()] = position
        position += 1
    return closing


def decode_where(cursor: Cursor, start: int, value: str, columns: Sequence[int], quoted: bool) -> Where:
    """What the word `value` at `start` means as a WHERE. `columns` has one for each character and the end."""
    module, name, first = split_module(cursor, value, columns)
    symbol_column = columns[first]
    offset, offset_column = 0, columns[len(value)]
    match = _OFFSET.search(name)
    if match is not None:
        offset_column = columns[first + match.start(1)]
        offset = cursor.number_from(match.group(1), offset_column, "an offset", 0)
        name = name[: match.start()]
    if name and name[0] in "0123456789":
        if match is not None:
            raise cursor.error("an address takes no offset", "add the numbers", offset_column)
        if name[:2].lower() != "0x":
            hint = f"an address is hexadecimal: 0x{name}" if name.isdigit() else ""
            raise cursor.error("a symbol does not start with a digit", hint, symbol_column)
        address = cursor.number_from(name, symbol_column, "an address", 0)
        return Where(
            module, None, address, column=start, symbol_column=symbol_column, offset_column=symbol_column
        )
    if not name or (match is None and name.startswith("+")):
        raise cursor.error("a symbol is missing", WHERE_HINT, symbol_column)
    if match is None:
        bad = _BAD_OFFSET.match(name)
        if bad is not None and "operator" not in name:
            raise cursor.error(
                "expected an offset in bytes after +", NUMBER_HINT, columns[first + bad.start(1)]
            )
        bad = None if quoted else _NEGATIVE_OFFSET.search(name)
        if bad is not None:
            hint = f"if the symbol has that name, write {quote(value)}"
            raise cursor.error("an offset cannot be negative", hint, columns[first + bad.start()])
    return Where(module, name, offset, column=start, symbol_column=symbol_column, offset_column=offset_column)


def split_module(cursor: Cursor, value: str, columns: Sequence[int]) -> tuple[str | None, str, int]:
    """MODULE and the rest of `MODULE:REST`, and where the rest starts; a double colon separates nothing."""
    match = MODULE.match(value)
    if match is None:
        return None, value, 0
    if not match.group(1).strip():
        raise cursor.error("a module name is missing before the colon", WHERE_HINT, columns[0])
    return match.group(1), value[match.end() :], match.end()


def where_text(where: Where) -> str:
    """WHERE as it can stand in a probe text: between quotes if it would not be read as the same otherwise."""
    plain = str(where)
    return plain if _reads_back(where, plain) else quote(plain)


def _reads_back(where: Where, plain: str) -> bool:
    if ARGUMENT_START.match(plain) or CONDITION_START.match(plain):
        return False
    cursor = Cursor(f"{plain} x")
    try:
        return take_where(cursor) == where and cursor.position == len(plain)
    except ProbeSyntaxError:
        return False
