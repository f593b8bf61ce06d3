"""Maps as Arrow tables."""

from __future__ import annotations

import sys

import pytest

from sidestep import errors
from sidestep.compiler import machine
from sidestep.compiler.integers import i64, u64
from sidestep.compiler.machine import Machine
from sidestep.errors import ProbeError
from sidestep.handlers.histogram import Histogram
from sidestep.handlers.maps import Array, Hash, PerThread


def test_tables() -> None:
    with machine.on(Machine(thread=7)):
        hashed, array, sizes, each = Hash(8, value=i64), Array(4), Histogram(linear=(0, 20, 10)), PerThread()
        hashed[5] = -3
        array[2] = 9
        sizes.add(u64(11))
        sizes.add(u64(25))
        each.add(u64(2))
        assert hashed.to_arrow().to_pydict() == {"key": [5], "value": [-3]}
        assert array.to_arrow().to_pydict() == {"index": [2], "value": [9]}
        assert each.to_arrow().to_pydict() == {"tid": [7], "value": [2]}
        assert sizes.to_arrow().to_pydict() == {"low": [10, 20], "high": [20, None], "count": [1, 1]}


def test_without_pyarrow_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ProbeError) as caught:
        Array(4).to_arrow()
    assert caught.value.reason is errors.NO_ARROW
    assert caught.value.__suppress_context__
