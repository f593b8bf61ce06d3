"""A position in a probe text that moves forward, and the errors that point at it."""

from __future__ import annotations

import re

from sidestep.errors import ProbeSyntaxError

MAX_TEXT = 16384  # characters
LOWEST_NUMBER = -(1 << 63)
HIGHEST_NUMBER = (1 << 64) - 1
NUMBER_HINT = "numbers are decimal or start with 0x"

_BLANKS = re.compile(r" +")
_WORD = re.compile(r"[^ ]+")
_NUMBER = re.compile(r"[0-9]\w*", re.ASCII)
_WELL_FORMED = re.compile(r"0[xX][0-9a-fA-F]+|0|[1-9][0-9]*")


class Cursor:
    """Reads `text` from `position` on. The text has no blank but the space and nothing unprintable."""

    def __init__(self, text: str) -> None:
        """Raises ProbeSyntaxError for a text that is too long or that a terminal cannot show."""
        text = re.sub(r"[\t\n\r\f\v]", " ", text)
        if len(text) > MAX_TEXT:
            raise ProbeSyntaxError(text[:64], 0, f"a probe text has at most {MAX_TEXT} characters")
        self.text, self.position = text, 0
        if not text.isprintable():
            column = next(index for index, character in enumerate(text) if not character.isprintable())
            visible = "".join(character if character.isprintable() else "?" for character in text)
            message = f"the character U+{ord(text[column]):04X} cannot stand in a probe text"
            raise ProbeSyntaxError(visible, column, message)

    def error(self, message: str, hint: str = "", column: int | None = None) -> ProbeSyntaxError:
        """An error at `column`, or where the cursor is."""
        return ProbeSyntaxError(self.text, self.position if column is None else column, message, hint)

    def at_end(self) -> bool:
        return self.position >= len(self.text)

    def at_word_end(self) -> bool:
        """Whether the text ends here or a blank follows."""
        return self.at_end() or self.text[self.position] == " "

    def next(self) -> str:
        """The next character; empty at the end."""
        return self.text[self.position : self.position + 1]

    def skip_blanks(self) -> None:
        self.take(_BLANKS)

    def peek(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        return pattern.match(self.text, self.position)

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Match here and move behind the match."""
        match = pattern.match(self.text, self.position)
        if match is not None:
            self.position = match.end()
        return match

    def take_text(self, text: str) -> bool:
        """Move behind `text` if it stands here."""
        found = self.text.startswith(text, self.position)
        if found:
            self.position += len(text)
        return found

    @property
    def word(self) -> str:
        """From here to the next blank, shortened, to be shown in a message."""
        match = self.peek(_WORD)
        word = match.group() if match else ""
        return word if len(word) <= 40 else f"{word[:37]}..."

    @property
    def found(self) -> str:
        """What stands here, in words, to be shown in a message."""
        return (
            f"not {self.word!r}"
            if self.word
            else "but the text ends here"
            if self.at_end()
            else "not a blank"
        )

    def number(
        self, what: str, low: int = LOWEST_NUMBER, high: int = HIGHEST_NUMBER, *, sign: int = 1
    ) -> int:
        """A decimal or 0x number here, times `sign`, within `low`..`high`; `what` it is, for messages."""
        start = self.position
        match = self.take(_NUMBER)
        if match is None:
            raise self.error(f"expected {what}, {self.found}", NUMBER_HINT)
        return self.number_from(match.group(), start, what, low, high, sign=sign)

    def number_from(
        self,
        digits: str,
        column: int,
        what: str,
        low: int = LOWEST_NUMBER,
        high: int = HIGHEST_NUMBER,
        *,
        sign: int = 1,
    ) -> int:
        """The number that `digits`, read at `column`, stand for."""
        if _WELL_FORMED.fullmatch(digits) is None:
            decimal = digits.isdecimal() and len(digits) < 32
            hint = f"write {digits.lstrip('0') or '0'}" if decimal else "hexadecimal starts with 0x"
            raise self.error(f"{_short(digits)!r} is not a number", hint, column)
        # What has more digits than this is out of every range, and need not be computed.
        value = sign * int(digits, 0) if len(digits) <= 24 else sign << 96
        if not low <= value <= high:
            shown = _short(f"{'-' if sign < 0 else ''}{digits}")
            hint = f"{_limit(low)} to {_limit(high)}"
            raise self.error(f"{shown} is out of range for {what}", hint, column)
        return value

    def signed_number(self, what: str, low: int = LOWEST_NUMBER, high: int = HIGHEST_NUMBER) -> int:
        """A number with or without a sign in front."""
        if self.take_text("-"):
            return self.number(what, low, high, sign=-1)
        self.take_text("+")
        return self.number(what, low, high)

    def quoted(self) -> tuple[str, list[int]]:
        """The word between double quotes that starts here, and the column of each of its characters.

        A backslash takes away the meaning of the next character. The list has one column more, of the end.
        """
        start = self.position
        self.position += 1
        characters: list[str] = []
        columns: list[int] = []
        while not self.at_end():
            character = self.next()
            if character == '"':
                columns.append(self.position)
                self.position += 1
                return "".join(characters), columns
            if character == "\\" and self.position + 1 < len(self.text):
                self.position += 1
                character = self.next()
            characters.append(character)
            columns.append(self.position)
            self.position += 1
        raise self.error("the quote is not closed", 'add a " at the end of the name', start)


def _short(digits: str) -> str:
    return digits if len(digits) <= 24 else f"{digits[:21]}..."


def _limit(value: int) -> str:
    """A bound of a range, short."""
    if abs(value) < 100_000:
        return str(value)
    for number in (31, 32, 63, 64):
        for exact, suffix in ((1 << number, ""), ((1 << number) - 1, "-1")):
            if abs(value) == exact:
                return f"{'-' if value < 0 else ''}2**{number}{suffix}"
    return str(value)
