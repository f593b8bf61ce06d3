"""What a fault's answer says; the target can write any number there."""

from __future__ import annotations

import random

import pytest

from sidestep.compiler.faults import ADDRESS_SHIFT, FAULT, NO_ADDRESS, NOWHERE, SITE_SHIFT, Site, described

SITES = (NOWHERE, Site("a.py:3", "u8 cannot be read", True), Site("a.py:4", "division by zero"))


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (0, None),
        (1, None),
        (FAULT, NOWHERE.what),
        (1 << SITE_SHIFT | FAULT, "a.py:3: u8 cannot be read at 0x0"),
        (0x1234 << ADDRESS_SHIFT | 1 << SITE_SHIFT | FAULT, "a.py:3: u8 cannot be read at 0x1234"),
        (NO_ADDRESS << ADDRESS_SHIFT | 1 << SITE_SHIFT | FAULT,
         "a.py:3: u8 cannot be read at an impossible address"),
        (2 << SITE_SHIFT | FAULT, "a.py:4: division by zero"),
        (3 << SITE_SHIFT | FAULT, None),
    ],
)  # fmt: skip
def test_described(answer: int, text: str | None) -> None:
    assert described(answer, SITES) == text


def test_any_number() -> None:
    source = random.Random(1)
    for _ in range(2000):
        assert len(described(source.getrandbits(64), SITES) or "") < 100
