"""Taking turns with another tracer: a controller that starts at the same moment stops the process, too."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from sidestep import errors
from sidestep.errors import TargetError

T = TypeVar("T")
PATIENCE, PAUSE = 1.0, 0.005
"""Seconds: a controller traces a process for moments, a debugger for as long as it likes."""


def in_turn(work: Callable[[], T]) -> T:
    """What `work` gives. While somebody else traces the process it is tried again for a moment; then raises
    TargetError ALREADY_TRACED."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return work()
        except TargetError as error:
            if error.reason is not errors.ALREADY_TRACED or time.monotonic() > deadline:
                raise
        time.sleep(PAUSE)
