"""Where a handler may go on, as far as it is known before it runs."""

from __future__ import annotations

from typing import Any

import pytest

from sidestep import native, u64
from sidestep.compiler.exits import exits

STEP = 7


@native
def moved(regs, by: u64):  # type: ignore[no-untyped-def]
    regs.ip = regs.ip + by


@native
def by_numbers(p, regs):  # type: ignore[no-untyped-def]
    if regs.di == 0:
        regs.ip = p.addr + 4
    elif regs.di == 1:
        regs.ip += STEP
    else:
        regs.ip = 2 + p.addr - 1


@native
def by_a_name(p, regs):  # type: ignore[no-untyped-def]
    here = p.addr
    length = u64(3) if regs.di == 0 else u64(5)
    regs.ip = here + length


@native
def by_a_call(p, regs):  # type: ignore[no-untyped-def]
    moved(regs, 6)


@native
def nowhere(p, regs):  # type: ignore[no-untyped-def]
    regs.ax = 1


@native
def by_a_register(p, regs):  # type: ignore[no-untyped-def]
    regs.ip = p.addr + regs.ax


@native
def to_an_address(p, regs):  # type: ignore[no-untyped-def]
    regs.ip = 0x401000


@native
def from_two_addresses(p, regs):  # type: ignore[no-untyped-def]
    regs.ip = p.addr + p.addr


@native
def by_a_loop(p, regs):  # type: ignore[no-untyped-def]
    place = p.addr
    while regs.di > place:
        place += 1
    regs.ip = place


@native
def returns(p, regs):  # type: ignore[no-untyped-def]
    regs.ip = regs.return_address


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (by_numbers, {4, STEP, 1}), (by_a_name, {3, 5}), (by_a_call, {6}), (nowhere, set()),
        (by_a_register, None), (to_an_address, None), (from_two_addresses, None), (by_a_loop, None),
        (returns, None),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)  # fmt: skip
def test_exits(handler: Any, expected: set[int] | None) -> None:
    assert exits(handler.representation) == expected
