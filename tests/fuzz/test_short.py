"""A short form of what `fuzz.run` does at length: the same inputs in every run."""

from __future__ import annotations

from functools import partial

import pytest

from fuzz.parsers import PARSERS, Parser
from fuzz.run import in_child, try_inputs

INPUTS = 250


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name.replace("/", " "))
def test_mutated_inputs_do_no_harm(parser: Parser) -> None:
    result = in_child(partial(try_inputs, parser, INPUTS, 0), parser.name)
    assert not result.failures, "\n".join(result.failures)
    assert (result.inputs, result.accepted > 0) == (INPUTS, True)
