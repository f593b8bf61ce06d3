"""The steps of a controller, and a controller that does something to itself at one of them.

A step is whatever changes or asks the target: a ptrace call, the wait behind it, the write of a page of its
memory (a longer write is torn at each page), the write of a record or a header to the memory shared with it.
All go through the few functions that are wrapped here. A fault at step N happens after step N - 1 is done and
before N begins.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from sidestep.address import PAGE
from sidestep.events import layout
from sidestep.target.process import ptrace
from sidestep.target.process.memory import ProcessMemory


class Steps:
    """Counts, and calls `fault(name)` at step `at` (from 1)."""

    def __init__(self, at: int, fault: Callable[[str], None]) -> None:
        self.at, self.fault, self.done = at, fault, 0
        self._waited = True

    def step(self, name: str) -> None:
        self.done += 1
        if self.done == self.at:
            self.fault(name)

    def install(self) -> None:
        """Wrap the functions, for the rest of this process's life."""
        call, seize = ptrace.call, ptrace.seize
        wait, wait_long, write = ptrace.wait, ptrace.wait_long, ProcessMemory.write

        def counted_call(request: ptrace.Request, tid: int, address: int = 0, data: int = 0) -> int:
            self.step(request.name)
            self._waited = False
            return call(request, tid, address, data)

        def counted_seize(tid: int, options: int) -> None:
            self.step("SEIZE")
            self._waited = False
            seize(tid, options)

        def counted_wait(tid: int) -> int | None:
            # How often a thread is looked at until it has stopped is chance; the first time is a step.
            if not self._waited:
                self.step("wait")
            self._waited = True
            return wait(tid)

        def counted_wait_long(tid: int) -> int:
            self.step("wait")
            self._waited = True
            return wait_long(tid)

        def counted_write(memory: ProcessMemory, address: int, data: bytes) -> None:
            while data:
                here = PAGE - address % PAGE
                self.step("write")
                write(memory, address, data[:here])
                address, data = address + here, data[here:]

        ptrace.call, ptrace.seize = counted_call, counted_seize
        ptrace.wait, ptrace.wait_long = counted_wait, counted_wait_long
        ProcessMemory.write = counted_write  # type: ignore[method-assign]
        for owner, name in (
            (layout.Header, "write"),
            (layout.ProbeRecord, "write"),
            (layout, "set_probe_state"),
            (layout, "initialise"),
        ):
            setattr(owner, name, self._counted(getattr(owner, name), f"{owner.__name__} {name}"))

    def _counted(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        short = name.rpartition(".")[2]

        @functools.wraps(function)
        def counted(*arguments: Any) -> Any:
            self.step(short)
            return function(*arguments)

        return counted
