"""Assertions about errors that point into a probe text."""

from __future__ import annotations

import pytest

from sidestep.errors import ProbeSyntaxError
from sidestep.spec import parse


def refused(marked: str, message: str, hint: str = "") -> None:
    """Parsing the first line of `marked` fails at the column of the caret in the second."""
    text, caret = marked.split("\n")
    with pytest.raises(ProbeSyntaxError) as caught:
        parse(text)
    error = caught.value
    assert error.text == text
    assert f"{text}\n{' ' * error.column}^" == f"{text}\n{caret}", str(error)
    assert message in error.message, str(error)
    assert hint in error.hint, str(error)
