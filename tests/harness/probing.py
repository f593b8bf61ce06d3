"""How tests use the product: probes on all functions of a program, and programs that it launches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from harness.programs import place
from harness.running import Started


@dataclass(slots=True)
class Launched:
    """A process that the product launched: something `Running` can hold."""

    target: Any

    @property
    def pid(self) -> int:
        return int(self.target.pid)

    def wait(self, timeout: float | None = None) -> int | None:
        ended = self.target.wait(timeout)
        if ended is None:
            return None
        return ended.code if ended.code is not None else -ended.signal


def launcher(sidestep: ModuleType) -> Any:
    """What `Running(start=...)` takes, for a process that stays stopped before its first instruction."""

    def start(words: Iterable[str], **options: object) -> Started:
        return Launched(sidestep.launch(list(words), **options))

    return start


@dataclass(slots=True)
class Probed:
    """Probes on functions of a program, by the function's name; and why others were refused."""

    probes: dict[str, Any] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def hits(self) -> dict[str, int]:
        return {function: probe.hits for function, probe in self.probes.items()}

    @property
    def hits_by_pid(self) -> dict[str, dict[int, int]]:
        return {function: probe.hits_by_pid for function, probe in self.probes.items()}


def probe_functions(sidestep: ModuleType, target: Any, program: str, functions: Iterable[str]) -> Probed:
    """Counts hits of each function; what the product refuses is left out, with its reason's name."""
    probed = Probed()
    for function in functions:
        try:
            batch = target.count(place(program, function))
        except sidestep.ProbeError as error:
            probed.refused[function] = error.reason.name
        else:
            (probed.probes[function],) = batch.probes
    return probed


@contextlib.contextmanager
def attached(sidestep: ModuleType, pid: int) -> Iterator[Any]:
    """A target for the time of the `with`; detached whatever happens."""
    target = sidestep.attach(pid)
    try:
        yield target
    finally:
        target.detach()
