"""From a probe object to where it goes and what is done there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sidestep import errors
from sidestep.arch.x86_64 import detour
from sidestep.arch.x86_64.handlers import NativeCall
from sidestep.errors import ProbeError, Refusal, TargetError
from sidestep.events.counters import Counters
from sidestep.events.record import EventProgram
from sidestep.kprobes.indexes import Indexes
from sidestep.kprobes.places import Places
from sidestep.kprobes.registry import Placed
from sidestep.probes import Kprobe, Native, Record
from sidestep.safety.region import Placement
from sidestep.symbols.resolve import Location
from sidestep.target.base import Engine

if TYPE_CHECKING:
    from sidestep.kprobes.handlers import Handlers


@dataclass(frozen=True, slots=True)
class Request:
    """A probe to be registered, where its location is known already (from a glob) with that."""

    probe: Kprobe
    location: Location | None = None


class Placer:
    """Gives probes their places, counters and actions. `on_event_added` is told of each event before anything
    can emit it."""

    def __init__(self, engine: Engine, places: Places, counters: Counters) -> None:
        self._engine, self._places, self._counters = engine, places, counters
        self.indexes = Indexes()
        self.on_event_added: Callable[[EventProgram], None] = lambda program: None
        self._handlers: Handlers | None = None

    def place(self, request: Request, *, advise: bool = True) -> Placed:
        """Raises ProbeError with the verdict's reason (with `advise`, and an instruction that could be probed
        instead), and whatever the probe's action is refused for."""
        probe = request.probe
        location = request.location or self._places.locate(probe)
        verdict = self._places.verdict(location)
        if isinstance(verdict, Refusal):
            if verdict.reason is errors.FOREIGN_BYTES and not self._engine.alive:
                raise TargetError("the target", errors.PROCESS_GONE, "it ended while probes were placed")
            advice = self._advice(location) if advise and verdict.reason.helps_to_move else ""
            raise ProbeError(location.place, verdict.reason, verdict.detail + advice)
        recorded = probe.action if isinstance(probe.action, Record) else None
        native = probe.action if isinstance(probe.action, Native) else None
        action: detour.Action
        two = native is not None or (recorded is not None and recorded.filtered)
        with self.indexes.taken(2 if two else 1) as indexes:
            index, second = indexes[0], indexes[1] if two else None
            if native is not None:
                assert second is not None
                action = self._native_call(native.handler, index, second, location, verdict)
            elif recorded is not None:
                program = self._program(recorded, index, second, location, verdict)
                if recorded.emit:
                    self.on_event_added(program)
                action = detour.Record(program, recorded.emit)
            else:
                action = detour.Count(index)
        self._places.show_as(location)
        probe.addr, probe.symbol, probe.offset = verdict.address, location.symbol, location.offset
        probe.module = location.module.name
        probe.method, probe.why, probe.note = verdict.tactic, "; ".join(verdict.notes) or None, location.note
        if isinstance(action, NativeCall) and action.goes_within:
            # Where the handler goes on, nothing but the buffer may have put its bytes.
            verdict = verdict._replace(has_inner_branches=True)
        sites = () if native is None else self._native_handlers().sites(native.handler)
        return Placed(probe, index, location, verdict, action, second, sites)

    def _advice(self, location: Location) -> str:
        other = self._places.nearest(location)
        return "; none near it can be probed" if other is None else f"; {other.place} can be probed"

    def _native_call(
        self, handler: Any, index: int, faults: int, location: Location, placement: Placement
    ) -> NativeCall:
        near = self._places.span(location.module)
        at_entry = self._places.is_entry(location, placement)
        call = self._native_handlers().call(handler, near, index, faults, placement.address, at_entry)
        detail = None
        if call.leaves and not at_entry:
            detail = _why_it_cannot_leave(call, placement)
        elif call.leaves and self._places.process.has_shadow_stack:
            detail = "a handler that returns true, where returns are checked against a shadow stack"
        if detail is not None:
            raise ProbeError(location.symbol, errors.NOT_SUPPORTED, detail)
        return call

    def _program(
        self, action: Record, index: int, matched: int | None, location: Location, placement: Placement
    ) -> EventProgram:
        spec = action.spec
        return EventProgram(
            index=index,
            name=spec.event or location.symbol,
            where=f"{location.symbol}+{location.offset:#x}",
            arguments=spec.arguments,
            condition=spec.condition,
            tids=None if action.tid is None else frozenset((action.tid,)),
            comms=() if action.comm is None else (action.comm.encode(),),
            stack_depth=action.stack_depth,
            string_limit=action.string_limit,
            at_entry=self._places.is_entry(location, placement),
            matched_index=matched,
            address=placement.address,
        )

    def _native_handlers(self) -> Handlers:
        """Their compiler is imported when the first one is registered."""
        if self._handlers is None:
            from sidestep.kprobes.handlers import Handlers

            self._handlers = Handlers(self._engine, self._counters, self.indexes.take_row, self._announce)
        return self._handlers

    @property
    def handler_events(self) -> list[int]:
        """The indexes of the events that native handlers emit."""
        return [] if self._handlers is None else self._handlers.event_indexes

    def _announce(self, program: EventProgram) -> None:
        self.on_event_added(program)

    def release(self) -> None:
        """The session is over: the maps of native handlers keep what they have."""
        if self._handlers is not None:
            self._handlers.release()


def _why_it_cannot_leave(call: NativeCall, placement: Placement) -> str | None:
    """Elsewhere than at a function's entry words below the stack pointer may be in use, so only places are
    reached that the buffer itself leads to; None if the handler goes to no other."""
    start = "a handler that returns true, elsewhere than at a function's entry"
    last = placement.instructions[-1].next_ip
    ends = [each.next_ip for each in placement.instructions if each.ip >= placement.address]
    reached = [end for end in ends if end < last or last == placement.clean_end]
    if call.exits is None:
        return f"{start}, must set regs.ip to p.addr plus a known number"
    if "sp" in call.written:
        return f"{start}, cannot change regs.sp"
    if not set(call.exits) <= {call.address, *reached}:
        distances = ", ".join(str(end - call.address) for end in reached) or "none"
        return f"{start}, can set regs.ip to p.addr plus the end of an instruction that moves: {distances}"
    return None
