"""Why a run of a handler ended early: what it answers then, and what that means.

    bits 0 .. 1    FAULT
    bits 2 .. 15   the number of the site
    bits 16 .. 63  the address that could not be reached, where there is one

The last answer of each probe is kept in memory that the target can write: it is only ever a number to look
up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

FAULT = 2
SITE_SHIFT, ADDRESS_SHIFT = 2, 16
MOST_SITES = 1 << ADDRESS_SHIFT - SITE_SHIFT
ADDRESSES = 1 << 47
NO_ADDRESS = (1 << 48) - 1  # it was not one that a program can have


class Site(NamedTuple):
    """A place in a handler where its run can end."""

    place: str  # file:line
    what: str
    has_address: bool = False


NOWHERE = Site("", "it returned true, but set regs.ip to no place where it can go on")
"""Found by the detour buffer, not by the handler: the site with the number 0."""


def described(answer: int, sites: Sequence[Site]) -> str | None:
    """An answer in words; None if it is no fault's, 0 for example."""
    number = answer >> SITE_SHIFT & MOST_SITES - 1
    if answer & 3 != FAULT or number >= len(sites):
        return None
    place, what, has_address = sites[number]
    text = f"{place}: {what}" if place else what
    if not has_address:
        return text
    address = answer >> ADDRESS_SHIFT
    return f"{text} at {'an impossible address' if address >= ADDRESSES else f'{address:#x}'}"
