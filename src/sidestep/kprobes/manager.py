"""Registering and unregistering: from probe objects to changes of the text, and back when something is
refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sidestep import collector, errors
from sidestep.address import Range
from sidestep.arch.x86_64 import detour
from sidestep.compiler.faults import described
from sidestep.errors import ProbeError, Refusal, TargetError
from sidestep.events import layout
from sidestep.events.counters import Counters
from sidestep.kprobes.keeper import Keeper
from sidestep.kprobes.placer import Placer, Request
from sidestep.kprobes.places import Places
from sidestep.kprobes.registry import Placed, Plan, Registry
from sidestep.kprobes.stream import EventStream
from sidestep.probes import Kprobe, Native, Record
from sidestep.target.base import Change, Detour, Engine, Label, SignalPath
from sidestep.uninterrupted import uninterrupted

Progress = Callable[[str, int, int], None]
ROOM_FOR_BUFFER = 160  # bytes of a usual buffer, to make one arena for a whole batch
KEEPING_INTERVAL = 0.1  # seconds
PAUSE = 2e-3  # seconds before the second try, doubled for each further one
TRIES = 9  # for a change that is refused because some thread will just return into its bytes


@dataclass(frozen=True, slots=True)
class Refused:
    """A probe that was not placed, as it was asked for, and why."""

    probe: str
    refusal: Refusal


class KprobeManager:
    """The probes of one target. Everything may be called from any thread; calls are serialised."""

    def __init__(self, engine: Engine, places: Places, registry: Registry) -> None:
        self.engine, self.places, self.registry = engine, places, registry
        self._view = memoryview(engine.view)
        self.counters = Counters(self._view)
        self.stream: EventStream | None = None
        self._lost_before = 0  # events of probes that are gone
        self.lock = threading.RLock()
        self._removed = False
        self.placer = Placer(engine, places, self.counters)
        self._keeper = Keeper(self.lock, self._take_back_blocks)

    # Registration

    def register(
        self, requests: Sequence[Request], *, partly: bool = False, progress: Progress | None = None
    ) -> list[Refused]:
        """Register a batch: all or nothing, or with `partly` all that can be; returns what was refused.

        Raises ProbeError for the first refused probe, with everything as it was before.
        """
        with self.lock, collector.paused():
            if self._removed:
                raise TargetError("the target", errors.DETACHED)
            added: list[Placed] = []
            refused: list[Refused] = []
            try:
                self._place_all(requests, added, refused, partly, progress)
                refused += self._guard(added, partly)
                refused += self._arm(added, partly, progress)
                uninterrupted(lambda: self._give_figures(added))
            except BaseException:
                uninterrupted(lambda: self._drop(added))
                raise
            return refused

    def _give_figures(self, added: Iterable[Placed]) -> None:
        for placed in added:
            if placed.probe in self.registry:
                placed.probe._attach(Figures(self.counters, placed, self._missing))
                if placed.probe.disabled:
                    self.engine.show_disabled(_label(placed))

    def _place_all(
        self,
        requests: Sequence[Request],
        added: list[Placed],
        refused: list[Refused],
        partly: bool,
        progress: Progress | None,
    ) -> None:
        self.places.expect(len(requests))
        for number, request in enumerate(requests):
            if progress is not None and number % 256 == 0:
                progress("looking at probepoints", number, len(requests))
            try:
                placed = self._place(request, advise=not partly)
            except ProbeError as error:
                if not partly:
                    raise
                refused.append(Refused(error.subject, error.refusal))
                continue
            self.registry.add(placed)
            added.append(placed)

    def _guard(self, added: list[Placed], partly: bool) -> list[Refused]:
        """See to it that the program's handlers for faults see nothing of copied instructions; where that is
        not possible, refuse those that may fault in a correct program."""
        path = self.places.guard
        refusal = self._try_to_guard(path) if path is not None and added else None
        concerned = [placed for placed in added if placed.placement.may_fault]
        if refusal is None or not concerned:
            return []
        if not partly:
            raise ProbeError(concerned[0].location.place, refusal.reason, refusal.detail)
        for placed in concerned:
            self.registry.remove(placed.probe)
            added.remove(placed)
            self._free([placed])
        return [Refused(placed.probe.name, refusal) for placed in concerned]

    def _try_to_guard(self, path: SignalPath) -> Refusal | None:
        """Why it failed, for good."""
        try:
            with self.placer.indexes.taken(2) as (restorer, installer):
                labels = (
                    Label(restorer, path.restorer.start, "signal return", layout.FLAG_HOOK),
                    Label(
                        installer, path.installer.start, "rt_sigaction", layout.FLAG_HOOK | layout.FLAG_LAST
                    ),
                )
                self._guard_faults(path, labels)
                self.places.is_guarded = True
        except (ProbeError, TargetError) as error:
            if isinstance(error, TargetError) and error.is_gone:
                raise
            self.places.no_guard = Refusal(errors.MAY_FAULT, error.detail)
        return self.places.no_guard

    def _guard_faults(self, path: SignalPath, labels: tuple[Label, Label]) -> None:
        for attempt in range(TRIES):
            try:
                self.engine.guard_faults(path, labels)
                return
            except ProbeError as error:
                if error.reason is not errors.SAVED_IP or attempt + 1 == TRIES:
                    raise
            time.sleep(PAUSE * 2**attempt)

    def _place(self, request: Request, *, advise: bool) -> Placed:
        probe = request.probe
        if probe.registered or probe in self.registry:
            raise ProbeError(probe.name, errors.ALREADY_REGISTERED)
        return self.placer.place(request, advise=advise)

    def _arm(self, added: list[Placed], partly: bool, progress: Progress | None) -> list[Refused]:
        """Arm what was added; what the stop refuses is tried again a few times, then raised or left out."""
        refused: list[Refused] = []
        ranges = [placed.placement.dcr for placed in added]
        for attempt in range(TRIES):
            failures = self._apply(ranges, progress)
            if not failures:
                return refused
            failed = {address: refusal for plan, refusal in failures for address in _probes_of(plan)}
            ranges = [plan.region.dcr for plan, _ in failures if plan.region is not None]
            if _are_temporary(failures) and attempt + 1 < TRIES:
                time.sleep(PAUSE * 2**attempt)
                continue
            touched = [
                placed for placed in added if placed.address in failed and placed.probe in self.registry
            ]
            if not partly or not touched:
                # It may be a neighbour's region, changed by what was added, that was refused.
                first = next(iter(touched), added[0])
                refusal = failed.get(first.address, failures[0][1])
                raise ProbeError(first.location.place, refusal.reason, refusal.detail)
            for placed in touched:
                self.registry.remove(placed.probe)
                self._free([placed])
                refused.append(Refused(placed.probe.name, failed[placed.address]))
            ranges = []
        return refused

    def _drop(self, added: Iterable[Placed]) -> None:
        """Undo a registration that failed: take out what was armed of it."""
        there = [self.registry.remove(placed.probe) for placed in added if placed.probe in self.registry]
        if self.engine.alive:
            self._apply([placed.placement.dcr for placed in there])
        for placed in there:
            self.engine.forget(placed.index)
        settled = self.engine.settle()
        self._release(there)
        if settled and not self.engine.has_children():
            self._free(there)

    # Changing the text

    def _apply(
        self, touched: Sequence[Range], progress: Progress | None = None
    ) -> list[tuple[Plan, Refusal]]:
        """Bring the text into line with the registry where regions are `touched`; what was refused stays as
        it was."""
        plans: list[Plan] = []
        changes: list[Change] = []
        failures: list[tuple[Plan, Refusal]] = []
        wanted = self.registry.plans(touched)
        size = sum(ROOM_FOR_BUFFER for plan in wanted if plan.region is not None)
        for number, plan in enumerate(wanted):
            if progress is not None and number % 256 == 0:
                progress("preparing detours", number, len(wanted))
            try:
                changes.append(Change(plan.old, self._build(plan, size)))
                plans.append(plan)
            except ProbeError as error:
                failures.append((plan, error.refusal))
        if not changes:
            return failures
        if progress is not None:
            progress("changing the code", 0, 0)
        refusals = uninterrupted(lambda: self._change(plans, changes))
        return failures + [(plans[index], refusal) for index, refusal in refusals.items()]

    def _change(self, plans: Sequence[Plan], changes: Sequence[Change]) -> dict[int, Refusal]:
        """Change the text, and what is known about it. The refusals by the index of the change."""
        refusals = self.engine.apply(changes)
        for index, (plan, change) in enumerate(zip(plans, changes, strict=True)):
            if index not in refusals:
                for old in change.old:
                    self.registry.take_detour(old)
                if change.new is not None and plan.region is not None:
                    self.registry.put_detour(change.new, plan.region)
        return refusals

    def _build(self, plan: Plan, room: int) -> Detour | None:
        region = plan.region
        if region is None:
            return None
        active = {address: self.registry.active_at(address) for address in region.probes}
        module = next(iter(active.values()))[0].location.module
        labels = tuple(_label(placed) for there in active.values() for placed in there)
        original = self.places.original_bytes(region.dcr.start, region.dcr.size)
        if len(original) < region.dcr.size:  # a library that was unloaded since the verdict
            detail = f"nothing is mapped at {region.dcr.start:#x}"
            raise ProbeError(labels[0].name, errors.FOREIGN_BYTES, detail)
        return self.engine.build(
            near=self.places.span(module),
            dcr=region.dcr,
            instructions=region.instructions,
            original=original,
            actions={address: [placed.action for placed in there] for address, there in active.items()},
            liveness=lambda address: self.places.liveness(
                active[address][0].location,
                address,
                detour.scratch(placed.action for placed in active[address]),
            ),
            labels=labels,
            room=room,
        )

    # Unregistering and switching

    def unregister(self, probes: Sequence[Kprobe]) -> None:
        """Take probes out; their final figures stay with them. An unknown probe raises after the others are
        done."""
        with self.lock, collector.paused():
            uninterrupted(lambda: self._unregister(probes))

    def _unregister(self, probes: Sequence[Kprobe]) -> None:
        unknown = [probe for probe in probes if probe not in self.registry]
        removed = [self.registry.remove(probe) for probe in probes if probe in self.registry]
        self._change_or_gone(removed)
        for placed in removed:
            self.engine.forget(placed.index)
        settled = self.engine.settle()
        self._release(removed)
        if settled and not self.engine.has_children():
            self._free(removed)
        if unknown:
            raise ProbeError(unknown[0].name, errors.NOT_REGISTERED)

    def _release(self, removed: Sequence[Placed]) -> None:
        """Let the probes keep their final figures, when nothing hits them any more."""
        indexes = [placed.index for placed in removed]
        if self.stream is not None:
            self.stream.finish(indexes)
        with self.counters.fixed_blocks():
            for placed in removed:
                if self.stream is not None and placed.emits:
                    figures = Figures(self.counters, placed)
                    self.stream.balance(placed.index, figures.matched(), figures.lost())
                placed.probe._release()
                self._lost_before += placed.probe.lost
        if self.stream is not None:
            self.stream.remove(indexes)

    def _missing(self, index: int) -> int:
        return 0 if self.stream is None else self.stream.missing(index)

    @property
    def lost(self) -> int:
        """Events of all probes and handlers, also of those that are gone, that will never be delivered."""
        own = sum(placed.probe.lost for placed in list(self.registry))
        handlers = self.placer.handler_events
        emitted = sum(self.counters.lost(index) + self._missing(index) for index in handlers)
        unclaimed = 0 if self.stream is None else self.stream.unclaimed
        return self._lost_before + own + emitted + unclaimed

    def _free(self, removed: Sequence[Placed]) -> None:
        indexes = [
            index for placed in removed for index in (placed.index, placed.second_index) if index is not None
        ]
        with self.counters.fixed_blocks():
            for index in indexes:
                self.counters.clear(index)
        self.placer.indexes.give_back(indexes)

    def switch(self, probes: Sequence[Kprobe], disabled: bool) -> None:
        """Enable or disable probes. Raises ProbeError NOT_REGISTERED before anything is changed."""
        with self.lock:
            for probe in probes:
                if probe not in self.registry:
                    raise ProbeError(probe.name, errors.NOT_REGISTERED)
            for probe in probes:
                probe.disabled = disabled
            switched = [self.registry.placed[probe] for probe in probes]
            self._change_or_raise(switched)
            if disabled:
                for placed in switched:
                    self.engine.show_disabled(_label(placed))
            self.engine.settle()

    def switch_all(self, enabled: bool) -> None:
        """`target.enabled`: arm or disarm all, without changing what each is."""
        with self.lock:
            if self.registry.enabled != enabled:
                self.registry.enabled = enabled
                self._change_or_raise(list(self.registry))
                self.engine.settle()

    def _change_or_gone(self, placed: Sequence[Placed]) -> None:
        try:
            self._change_or_raise(placed)
        except TargetError as error:
            if error.reason is not errors.PROCESS_GONE:
                raise

    def _change_or_raise(self, placed: Sequence[Placed]) -> None:
        failures = self._apply([each.placement.dcr for each in placed])
        for attempt in range(TRIES - 1):
            if not failures or not _are_temporary(failures):
                break
            time.sleep(PAUSE * 2**attempt)
            failures = self._apply([each.placement.dcr for each in placed])
        if failures:
            plan, refusal = failures[0]
            where = next(iter(_probes_of(plan)), 0)
            raise ProbeError(f"{where:#x}", refusal.reason, refusal.detail)

    def remove_all(self) -> list[str]:
        """Take everything out of the target; the probes keep their figures. What had to stay, in
        sentences."""
        with self.lock, collector.paused():
            return uninterrupted(self._remove_all)

    def _remove_all(self) -> list[str]:
        self._removed = True
        problems = self.engine.remove(list(self.registry.detours.values()))
        if self._keeper.failure is not None:
            problems.append(f"counters of ended processes were not given to others: {self._keeper.failure!r}")
        if self.stream is not None:
            self.stream.end()
        self._release(list(self.registry))
        self.placer.release()
        self.registry.clear()
        return problems

    def _take_back_blocks(self) -> None:
        """Give the counter blocks of processes that have ended to others."""
        if not self.engine.shares_pid_namespace:
            return
        for pid, blocks in self.counters.ended(self.engine.is_alive).items():
            rings = [layout.thread_ring(block, self.engine.cpus) for block in blocks]
            if self.stream is not None:
                self.stream.settle([ring for ring in rings if ring is not None])
            self.counters.retire(pid, self.placer.indexes.highest)

    def close(self) -> None:
        """Let go of the shared memory."""
        self._keeper.close()
        self.counters.close()
        self._view.release()
        self.engine.close()


@dataclass(frozen=True, slots=True)
class Figures:
    """The counters of one registered probe (probes.Live)."""

    counters: Counters
    placed: Placed
    missing: Callable[[int], int] = lambda index: 0

    def hits_by_pid(self) -> dict[int, int]:
        return dict(self.counters.by_pid(self.placed.index))

    def lost(self) -> int:
        return self.counters.lost(self.placed.index) + self.missing(self.placed.index)

    def faults(self) -> int:
        index = self.placed.second_index if isinstance(self.placed.probe.action, Native) else None
        return 0 if index is None else self.counters.total(index)

    def last_fault(self) -> str | None:
        index = self.placed.second_index
        return described(self.counters.last_fault(index), self.placed.sites) if index is not None else None

    def matched(self) -> int:
        index = self.placed.second_index if isinstance(self.placed.probe.action, Record) else None
        return self.counters.total(self.placed.index if index is None else index)


def _label(placed: Placed) -> Label:
    location = placed.location
    name = f"{location.module.name}:{location.symbol}+{location.offset:#x}"
    return Label(placed.index, placed.address, name)


def _are_temporary(failures: Sequence[tuple[Plan, Refusal]]) -> bool:
    """Whether all were refused because of where some thread just is."""
    return all(refusal.reason is errors.SAVED_IP for _, refusal in failures)


def _probes_of(plan: Plan) -> tuple[int, ...]:
    return () if plan.region is None else plan.region.probes
