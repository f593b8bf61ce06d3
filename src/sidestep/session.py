"""A target with its probes: what `attach()` and `launch()` (opening.py) return."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from sidestep import errors
from sidestep.ending import ending
from sidestep.errors import ProbeError, Refusal, SidestepError, TargetError
from sidestep.events.decode import Event
from sidestep.kprobes.listing import list_probes
from sidestep.kprobes.manager import KprobeManager, Progress
from sidestep.kprobes.placer import Request
from sidestep.kprobes.places import Places
from sidestep.kprobes.registry import Registry
from sidestep.kprobes.stream import EventStream
from sidestep.kprobes.texts import Batch, refuse_return, register_specs
from sidestep.probes import Count, Handler, Kprobe, Native, Record
from sidestep.safety.region import Placement
from sidestep.spec import ProbeSpec, parse, parse_where
from sidestep.symbols.link_map import is_loaded
from sidestep.symbols.modules import Module
from sidestep.symbols.resolve import Location
from sidestep.target.process import process as linux
from sidestep.target.process import procfs, remains
from sidestep.target.process.company import alone
from sidestep.target.process.engine import InlineEngine
from sidestep.target.process.memory import ProcessMemory
from sidestep.uninterrupted import uninterrupted

Exit = linux.Exit

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Checked:
    """How a probe at a location would be placed, or why not, and what could be probed instead.

    `nearest` is the nearest other instruction that can be probed, looked for where one probe was named.
    """

    location: Location
    verdict: Placement | Refusal
    nearest: Location | None = None


class DetachError(SidestepError):
    """Something could not be taken out of a process; the text says what, and what to do."""


def about_the_living(method: Callable[P, T]) -> Callable[P, T]:
    """A method of Target that says of a program that has ended meanwhile just that, and not what is missing
    where it was."""

    @wraps(method)
    def checked(*arguments: P.args, **named: P.kwargs) -> T:
        try:
            return method(*arguments, **named)
        except ProbeError as error:
            target = arguments[0]
            assert isinstance(target, Target)
            if not target._detached and not target.alive:
                executed = target.executed
                detail = "" if executed is None else f"it has executed another program ({executed})"
                raise TargetError(f"process {target.pid}", errors.PROCESS_GONE, detail) from error
            raise

    return checked


class Target:
    """A process that is probed. It runs on, except for moments in which its text changes.

    Leaving the `with` block, or `detach()`, restores it; so does the end of this process, also by SIGTERM or
    SIGHUP, unless it handles these itself. Calls may come from any thread.
    """

    def __init__(self, process: linux.Process, *, ring_size: int | None = None) -> None:
        self.process = process
        self._registry = Registry()
        self._places = Places(process, self._registry)
        self._manager: KprobeManager | None = None
        self._engine: InlineEngine | None = None
        self._stream: EventStream | None = None
        self._ring_size = ring_size
        self._loaded = not process.held
        self._detached = False
        self._lock = threading.RLock()
        self._left_over: Sequence[Event] = []
        self._lost_in_all: int | None = None
        self._places.refresh()
        ending.add(self.detach)

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    def __repr__(self) -> str:
        return f"<Target {self.pid} {self.name}>"

    # The process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def name(self) -> str:
        return self.process.name

    @property
    def alive(self) -> bool:
        """Whether the program that is probed still runs: it has neither ended nor called exec."""
        return self.process.is_same_program

    @property
    def executed(self) -> str | None:
        """The name of the program that has replaced the one that is probed (exec): there the probes ended.

        None if none has, or nobody can tell any more: of a process that has ended meanwhile, only where it
        waits for its parent, is called something else now, and could not have named itself so.
        """
        if self.process.is_same_program:
            return None
        program: str | None = None
        with contextlib.suppress(FileNotFoundError):  # it has no memory any more
            program = procfs.program_name(self.pid)
        # Only now: an exec changes the name a moment after the memory, and without memory it is the last one.
        try:
            status = procfs.read_status(self.pid)
        except TargetError:
            return None
        if status.start_time != self.process.start_time:
            return None
        renamed = status.name != self.name
        if program is None:
            return status.name if renamed and not self._places.may_rename_itself() else None
        return status.name if renamed or not program else program

    @property
    def memory(self) -> ProcessMemory:
        """The target's memory: read(addr, n), write(addr, data), read_cstring(addr), read_u64(addr)."""
        return self.process.memory

    @property
    def threads(self) -> Sequence[int]:
        """The thread ids."""
        return procfs.threads(self.pid)

    @property
    def modules(self) -> Sequence[Module]:
        """What is loaded, the main program first."""
        return self._places.refresh()

    @property
    def probes(self) -> Sequence[Kprobe]:
        """The registered probes, in the order of registration."""
        return [placed.probe for placed in self._registry]

    def resume(self) -> None:
        """Let a launched process run."""
        self.process.resume()

    def wait(self, timeout: float | None = None) -> linux.Exit | None:
        """Wait for the end of the process; None when `timeout` seconds are over first. A launched one is let
        go."""
        self.resume()
        return self.process.wait(timeout)

    # Names

    @about_the_living
    def resolve(self, where: str) -> Location:
        """The one location of `[MODULE:]SYMBOL[+OFFSET]`; raises ProbeError."""
        self._load()
        self._places.refresh()
        return self._places.locate(Kprobe(where))

    def symbolize(self, address: int) -> str:
        """`malloc+0x4` for a run-time address."""
        return self._places.symbolizer.name(address)

    @about_the_living
    def functions(self, glob: str) -> Sequence[Location]:
        """The functions that `[MODULE:]GLOB` matches in all modules; raises ProbeError when there is none."""
        self._load()
        self._places.refresh()
        return self._places.find(parse_where(glob), everywhere=True)

    @about_the_living
    def check(self, text: str | ProbeSpec, progress: Progress | None = None) -> Sequence[Checked]:
        """How the probes of a probe text would be placed, without placing them. `progress` as in `trace`."""
        self._load()
        self._places.expect(1)
        self._places.show(progress)
        spec = parse(text) if isinstance(text, str) else text
        refuse_return(spec)
        where = spec.where
        found = self._places.find(where, everywhere=where.is_glob)
        checked = []
        for number, location in enumerate(found):
            if progress is not None:
                progress("looking at probepoints", number, len(found))
            verdict = self._places.verdict(location)
            moves = isinstance(verdict, Refusal) and verdict.reason.helps_to_move and not where.is_glob
            checked.append(Checked(location, verdict, self._places.nearest(location) if moves else None))
        return checked

    # Registration

    def register_kprobe(self, probe: Kprobe) -> None:
        """Register and, unless it is disabled, arm a probe. Raises ProbeError with the reason."""
        self.register_kprobes([probe])

    @about_the_living
    def register_kprobes(self, probes: Iterable[Kprobe]) -> None:
        """Register a batch, all or nothing."""
        probes = list(probes)
        for probe in probes:
            if isinstance(probe.action, Native):
                self._prepare_for(probe.action.handler)
        self._prepared().register([Request(probe) for probe in probes])

    def _prepare_for(self, handler: Any) -> None:
        if self.process.recording_limits:
            raise ProbeError(handler.__name__, errors.SECCOMP, self.process.recording_limits)
        if handler.emits:
            self._open_stream()

    def kprobe(self, where: str) -> Callable[[Handler], Kprobe | Batch]:
        """A decorator: `@target.kprobe("libc:malloc")` over a native handler registers a probe with it, and
        gives the probe. A glob registers all that can be, and gives the batch."""

        def register(handler: Handler) -> Kprobe | Batch:
            place = parse_where(where)
            if not place.is_glob:
                probe = Kprobe(place, pre_handler=handler)
                self.register_kprobe(probe)
                return probe
            self._prepare_for(handler)
            spec = ProbeSpec("p", None, None, None, place, text=where)

            def make(spec: ProbeSpec) -> Kprobe:
                return Kprobe(spec.where, pre_handler=handler)

            return register_specs(self._prepared(), self._places, [spec], make)

        return register

    def unregister_kprobe(self, probe: Kprobe) -> None:
        self.unregister_kprobes([probe])

    def unregister_kprobes(self, probes: Iterable[Kprobe]) -> None:
        """Take probes out (a Batch, say). An unknown one raises ProbeError after the others are done."""
        self._prepared().unregister(list(probes))

    def enable_kprobe(self, probe: Kprobe) -> None:
        self._prepared().switch([probe], disabled=False)

    def disable_kprobe(self, probe: Kprobe) -> None:
        """A disabled probe stays registered and counts nothing."""
        self._prepared().switch([probe], disabled=True)

    @property
    def enabled(self) -> bool:
        """False disarms all probes, without changing which of them are disabled."""
        return self._registry.enabled

    @enabled.setter
    def enabled(self, value: bool) -> None:
        self._prepared().switch_all(value)

    def list(self) -> str:
        """The probes in the kernel's format."""
        return list_probes(self._registry)

    @about_the_living
    def count(
        self,
        *texts: str | ProbeSpec,
        tid: int | None = None,
        comm: str | None = None,
        progress: Progress | None = None,
    ) -> Batch:
        """Count the hits of probes. Globs take all that can be placed; a named probe that is refused
        raises."""
        specs = _parsed(texts)

        def make(spec: ProbeSpec) -> Kprobe:
            if spec.condition is None and tid is None and comm is None:
                return Kprobe(spec.where, action=Count(spec.event, spec.group))
            return Kprobe(spec.where, action=self._recording(Record(spec, tid=tid, comm=comm, emit=False)))

        return register_specs(self._prepared(), self._places, specs, make, progress)

    @about_the_living
    def trace(
        self,
        *texts: str | ProbeSpec,
        tid: int | None = None,
        comm: str | None = None,
        stack: int = 0,
        string_limit: int = 256,
        progress: Progress | None = None,
    ) -> Batch:
        """Record an event at each hit, as `sidestep trace` does; `events()` yields them.

        `stack` is the most frames of a backtrace with each event (by frame pointers); `string_limit` is in
        bytes.
        """
        specs = _parsed(texts)
        self._open_stream()

        def make(spec: ProbeSpec) -> Kprobe:
            record = Record(spec, string_limit=string_limit, stack_depth=stack, tid=tid, comm=comm)
            return Kprobe(spec.where, action=self._recording(record))

        return register_specs(self._prepared(), self._places, specs, make, progress)

    def _recording(self, record: Record) -> Record:
        """The action, if the target's filters of system calls allow what it does."""
        if self.process.recording_limits:
            raise ProbeError(record.spec.text, errors.SECCOMP, self.process.recording_limits)
        return record

    def _prepared(self) -> KprobeManager:
        """The manager; at the first use memory of ours is put into the process."""
        with self._lock:
            return self._prepare()

    def _prepare(self) -> KprobeManager:
        if self._detached:
            raise TargetError(f"process {self.pid}", errors.DETACHED)
        self._load()
        if self._manager is None:
            for session in remains.sessions(self.pid):
                if not session.controller_alive:
                    remains.clean(self.pid)
            return alone(self.pid, lambda: uninterrupted(self._put_in))
        return self._manager

    def _put_in(self) -> KprobeManager:
        engine = self._engine = InlineEngine(self.process, self._places.variable)
        self._places.forbidden = lambda: [engine.shared.span, *engine.space.spans, *engine.hooks]
        self._manager = KprobeManager(engine, self._places, self._registry)
        return self._manager

    def _load(self) -> None:
        """Run a launched program until its libraries are mapped and relocated; their constructors come
        later."""
        if self._loaded:
            return
        self._loaded = True
        read = self.process.memory.read
        main = self._places.modules[0]
        if main.elf.interpreter is None:
            return
        if not self.process.run_until(lambda: is_loaded(main, read)):
            raise TargetError(
                f"process {self.pid}", errors.PROCESS_GONE, "it ended before its program started"
            )

    # Events

    def _open_stream(self) -> EventStream:
        with self._lock:
            return self._prepare_stream()

    def _prepare_stream(self) -> EventStream:
        manager = self._prepare()
        if self._stream is None:
            assert self._engine is not None
            engine = self._engine
            rings = uninterrupted(lambda: engine.open_rings(self._ring_size))
            stream = EventStream(
                memoryview(rings.view),
                self._engine.ring_count,
                self._engine.ring_size,
                self.symbolize,
                engine.is_quiet,
            )
            manager.placer.on_event_added = stream.add
            self._stream = manager.stream = stream
        return self._stream

    def events(self, timeout: float | None = None) -> Iterator[Event]:
        """The events of `trace()`, by time; ends after `timeout` seconds, at the target's end or exec, or at
        `stop_events()`.

        A launched process is let go at the first event that is asked for. After `detach()` it yields what
        was left.
        """
        if self._detached:
            yield from self._left_over
            self._left_over = []
            return
        self.resume()
        yield from self._open_stream().events(timeout, lambda: self.alive)

    def stop_events(self) -> None:
        """End `events()`, from a signal handler or another thread."""
        if self._stream is not None:
            self._stream.stop()

    @property
    def lost(self) -> int:
        """Events of all probes, and of all native handlers, that found their ring full, or whose thread was
        killed or jumped out before they were complete. Final after `detach()`: then what matched is either
        delivered, or left to be asked for, or lost."""
        if self._lost_in_all is None and self._manager is not None:
            return self._manager.lost
        return self._lost_in_all or 0

    # The end

    def detach(self) -> None:
        """Take everything out of the target, and of children that inherited it; a held process is let go.

        The probes keep their final figures. Raises DetachError when something had to stay.
        """
        with self._lock:
            if self._detached:
                return
            self._detached = True
        problems: Sequence[str] = []
        try:
            if self._manager is not None:
                problems = self._manager.remove_all()
        finally:
            uninterrupted(self._close)
            ending.remove(self.detach)
        if problems:
            raise DetachError("\n".join(problems))

    def _close(self) -> None:
        try:
            if self._stream is not None:
                self._left_over = self._stream.flush()
                self._stream.close()
            if self._manager is not None:
                self._lost_in_all = self._manager.lost
                self._manager.close()
        finally:
            self.process.close()


def _parsed(texts: Iterable[str | ProbeSpec]) -> Sequence[ProbeSpec]:
    return [parse(text) if isinstance(text, str) else text for text in texts]
