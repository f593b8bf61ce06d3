"""Probe objects: what the user holds. No I/O happens here; a session gives them life."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from sidestep import errors
from sidestep.errors import ProbeError
from sidestep.spec import ProbeSpec, Where, parse_where

Handler = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Count:
    """The built-in action that only counts hits. `event`: what the probe is called, if not by its place."""

    event: str | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """The built-in action that records an event: the fields and the condition of a probe text.

    `string_limit` is in bytes; `stack_depth` counts frames (0: no backtrace). `tid` and `comm` restrict the
    hits that are recorded, not those that are counted.
    """

    spec: ProbeSpec
    string_limit: int = 256
    stack_depth: int = 0
    tid: int | None = None
    comm: str | None = None
    emit: bool = True  # False: only the matches are counted, nothing goes into the ring

    @property
    def event(self) -> str | None:
        return self.spec.event

    @property
    def group(self) -> str | None:
        return self.spec.group

    @property
    def filtered(self) -> bool:
        """Whether some hits are left out."""
        return self.spec.condition is not None or self.tid is not None or self.comm is not None


@dataclass(frozen=True, slots=True)
class Native:
    """A native handler (compiler.native.NativeFunction) that runs in the target at each hit."""

    handler: Any
    event: str | None = None
    group: str | None = None


class Live(Protocol):
    """What a session tells about a probe that is registered in it."""

    def hits_by_pid(self) -> dict[int, int]: ...
    def lost(self) -> int: ...
    def matched(self) -> int: ...
    def faults(self) -> int: ...
    def last_fault(self) -> str | None: ...


class Kprobe:
    """A probe on one instruction.

    Say where by `where` ("[MODULE:]SYMBOL[+OFFSET]" or "[MODULE:]0xOFFSET"), or by `symbol_name`, `offset`
    and `module`, or by `addr` (a run-time address); exactly one of these. Without an `action` its hits are
    counted.
    """

    def __init__(
        self,
        where: str | Where | None = None,
        *,
        symbol_name: str | None = None,
        offset: int = 0,
        module: str | None = None,
        addr: int | None = None,
        pre_handler: Handler | None = None,
        post_handler: Handler | None = None,
        disabled: bool = False,
        action: Count | Record | Native | None = None,
    ) -> None:
        if (where is None) + (symbol_name is None) + (addr is None) != 2:
            raise ValueError("a probe needs exactly one of where, symbol_name and addr")
        if addr is not None and (offset or module is not None):
            raise ValueError("offset and module go with symbol_name, not with addr")
        if where is not None and (offset or module is not None):
            raise ValueError("write the offset and the module into where: MODULE:SYMBOL+OFFSET")
        if post_handler is not None:
            raise ProbeError("kprobe", errors.NOT_SUPPORTED, "post_handler; this version has pre_handler")
        if pre_handler is not None:
            if action is not None:
                raise ValueError("a probe has an action or a pre_handler, not both")
            if not hasattr(pre_handler, "native_source"):
                detail = "handlers in Python; decorate it with @sidestep.native"
                raise ProbeError("kprobe", errors.NOT_SUPPORTED, detail)
            action = Native(pre_handler)
        if symbol_name is not None:
            where = Where(module, symbol_name, offset)
        self.where: Where | None = parse_where(where) if isinstance(where, str) else where
        self.requested_address = addr
        self.action: Count | Record | Native = action or Count()
        self.disabled = disabled
        self.registered = False
        self.gone = False
        self.addr: int | None = addr
        self.symbol: str | None = None
        self.offset = 0  # from the start of the symbol
        self.module: str | None = None
        self.method: str | None = None
        self.why: str | None = None
        self.note: str | None = None
        self._live: Live | None = None
        self._final: tuple[dict[int, int], int, int, int, str | None] = ({}, 0, 0, 0, None)

    @property
    def name(self) -> str:
        """How messages and tables call the probe: its event name, or its place, `SYMBOL+OFFSET`."""
        if self.action.event:
            return self.action.event
        if self.symbol is None:
            return str(self.where or f"{self.requested_address:#x}")
        return f"{self.symbol}+{self.offset:#x}" if self.offset else self.symbol

    @property
    def condition(self) -> str | None:
        """What must hold for a hit to match, as in a probe text."""
        action = self.action
        if not isinstance(action, Record) or action.spec.condition is None:
            return None
        return str(action.spec.condition)

    @property
    def hits(self) -> int:
        """How often control arrived at the instruction while the probe was armed, in all processes."""
        return sum(self.hits_by_pid.values())

    @property
    def hits_by_pid(self) -> dict[int, int]:
        """Hits by process: the target and the children it forked. Pid 0: hits whose process could not be
        noted."""
        return self._live.hits_by_pid() if self._live else dict(self._final[0])

    @property
    def lost(self) -> int:
        """Events that found their ring full, or whose thread was killed or jumped out before they were
        complete; of these, all are known when the probe is gone."""
        return self._live.lost() if self._live else self._final[1]

    @property
    def matched(self) -> int:
        """Hits that met the condition and the filters; all hits where there is none."""
        return self._live.matched() if self._live else self._final[2]

    @property
    def faults(self) -> int:
        """Runs of the native handler that ended early: a bad address, a failed assertion, no fuel left."""
        return self._live.faults() if self._live else self._final[3]

    @property
    def last_fault(self) -> str | None:
        """Where and why the last of them ended: "handlers.py:12: u32 cannot be read at 0x10"."""
        return self._live.last_fault() if self._live else self._final[4]

    @property
    def nmissed(self) -> int:
        """Hits whose handlers did not run. Counting and recording run at every hit: always 0."""
        return 0

    @property
    def optimized(self) -> bool:
        """Entered by a jump, not by a trap."""
        return self.registered and not self.disabled and self.method is not None

    def _attach(self, live: Live) -> None:
        self._live, self.registered, self.gone = live, True, False

    def _release(self) -> None:
        """Keep the final figures; the session is done with the probe."""
        if self._live is not None:
            self._final = (self.hits_by_pid, self.lost, self.matched, self.faults, self.last_fault)
        self._live, self.registered = None, False

    def __repr__(self) -> str:
        state = "registered" if self.registered else "not registered"
        return f"<Kprobe {self.name} {state}>"
