"""Strings that came out of files: made fit to be printed on a terminal."""

from __future__ import annotations


def printable(raw: bytes) -> str:
    """UTF-8 as text; what is no UTF-8, and every character that does not print, as an escape (`\\x1b`)."""
    text = raw.decode("utf-8", "backslashreplace")
    return text if text.isprintable() else clean(text)


def clean(text: str) -> str:
    """With an escape for every character that does not print: controls, bidirectional marks, surrogates."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )
