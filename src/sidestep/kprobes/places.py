"""Where probes go: modules of the target, names to locations, verdicts about them, the original bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sidestep import errors
from sidestep.address import Range
from sidestep.arch.x86_64 import liveness
from sidestep.arch.x86_64.placement import ENDBR64_SIZE
from sidestep.arch.x86_64.signal_code import SIGNALS
from sidestep.errors import ProbeError, Reason, Refusal
from sidestep.kprobes.registry import Registry
from sidestep.kprobes.signal_path import Installers, find_signal_path, installers
from sidestep.maps import overlapping, read_maps
from sidestep.probes import Kprobe
from sidestep.safety.context import Circumstances, ModuleContext
from sidestep.safety.nearby import nearest
from sidestep.safety.region import Placement
from sidestep.safety.verdict import verdict
from sidestep.spec import SymbolMemory, Where
from sidestep.symbols.mapped import HUGE_PAGES, VDSO
from sidestep.symbols.modules import Module, read_modules
from sidestep.symbols.resolve import Location, Resolution, Symbolizer, data_address, resolve, resolve_all
from sidestep.target.base import Inspected, SignalPath

INSTALLERS = ("sigaction", "signal", "__sysv_signal", "bsd_signal", "sigvec", "__sigaction")
RENAMERS = ("prctl", "pthread_setname_np", "syscall")
SEARCHED_AT_MOST = 512 << 20  # bytes of memory, in a stop
SYNCHRONOUS = "ASYNC_start_job"  # OpenSSL's jobs, which use setcontext
C_LIBRARIES = ("libc", "ld-linux", "ld-musl", "libpthread")
FIRST_LOOK = 32
LOOK_AHEAD = 256  # bytes of code behind a probepoint that the liveness analysis looks at
GO_SECTIONS = (".gopclntab", ".note.go.buildid")


class Places:
    """What is loaded in one process. `refresh()` looks again; answers are kept per module."""

    def __init__(self, process: Inspected, registry: Registry) -> None:
        self.process, self.registry = process, registry
        self.modules: list[Module] = []
        self.forbidden: Callable[[], Sequence[Range]] = lambda: ()
        self._contexts: dict[Module, ModuleContext] = {}
        self._private: dict[Module, tuple[bool, bool]] = {}
        self._symbolizer: Symbolizer | None = None
        self._shown_as: dict[int, str] = {}  # the names that functions were asked for, by their addresses
        self._seen: set[tuple[int, int, str, int, str]] = set()
        self._batch = Circumstances(errors.MAY_FAULT, shadow_stacks=True)
        self._spans: dict[Module, Range] = {}
        self._installers: dict[Module, Installers] = {}
        self.guard: SignalPath | None = None  # what has to be guarded before instructions that may fault move
        self.is_guarded = False  # that was done
        self.no_guard: Refusal | None = None  # why it failed

    def refresh(self) -> list[Module]:
        """Read what is loaded now, if anything is loaded that was not; modules that stay are the same
        objects."""
        code = [mapping for mapping in read_maps(self.process.pid) if "x" in mapping.perms]
        seen = {(m.start, m.end, m.perms, m.inode, m.path) for m in code if m.path}
        if seen == self._seen:
            return self.modules
        known = self.modules
        self.modules = read_modules(self.process.pid, self.process.memory.read, known)
        self._seen = seen
        if self.modules != known:
            self._symbolizer = None
        for module in self.modules:
            mine = [m for mapped in module.ranges for m in overlapping(code, mapped.start, mapped.end)]
            is_file = all(m.inode and not m.path.startswith(HUGE_PAGES) for m in mine)
            self._private[module] = (is_file, any("s" in m.perms for m in mine))
        return self.modules

    def expect(self, probes: int) -> None:
        """About how many probes will be judged now: chooses how references in large modules are searched."""
        self.refresh()
        batch = self._batch
        batch.probes = probes
        self.process.hides_contexts = self._may_hide_contexts()
        batch.fault_rule = self._fault_rule()
        batch.shadow_stacks = self.process.has_shadow_stack
        batch.forbidden = [(span, "Sidestep's own memory") for span in self.forbidden()]

    def show(self, progress: Callable[[str, int, int], None] | None) -> None:
        """Whom to tell (what, done, in all) while a large module is searched."""
        self._batch.progress = (
            None
            if progress is None
            else lambda module, done, size: progress(f"reading the code of {module}", done, size)
        )

    def _fault_rule(self) -> Reason | None:
        """Why instructions that may fault do not move: the program has handlers for faults, or is able to
        install some, and they would see where the copies are. None where nothing is against it, or where
        `guard` says what has to be done for it."""
        self.guard = None
        handles = self.process.catches(*SIGNALS)
        if self.is_guarded:
            return errors.MAY_FAULT if handles and self.process.hides_contexts else None
        if not handles and not self._may_install_handlers():
            return None
        path = self.signal_path()
        if isinstance(path, SignalPath):
            self.guard = path
            return None
        if handles:
            return errors.MAY_FAULT
        return errors.MAY_FAULT_LATER if self.process.held else None

    def _may_install_handlers(self) -> bool:
        own = [m for m in self.modules if m.is_main or not m.name.startswith((*C_LIBRARIES, "["))]
        return any(
            any(module.functions.mentions(name) for name in INSTALLERS) or self._installers_in(module).calls
            for module in own
        )

    def _installers_in(self, module: Module) -> Installers:
        if module not in self._installers:
            self._installers[module] = installers(module)
        return self._installers[module]

    def signal_path(self) -> SignalPath | Refusal:
        """Where handlers for faults come and go, or why they cannot be guarded."""
        if self.no_guard is not None:
            return self.no_guard
        if self.process.hides_contexts:
            return Refusal(errors.MAY_FAULT, "the program switches stacks")
        return find_signal_path([(each, self._installers_in(each)) for each in self.modules], self._context)

    def _may_hide_contexts(self) -> bool:
        """Whether the program switches stacks and handles signals: a context that was interrupted by a
        signal and switched away from in its handler waits on a stack that no thread refers to.

        OpenSSL's jobs, linked in by many, are never switched in a handler.
        """
        own = [m for m in self.modules if not m.name.startswith((*C_LIBRARIES, "["))]
        switches = any(map(_switches_stacks, own))
        return switches and (self.process.held or self.process.catches(*range(1, 65)))

    def may_rename_itself(self) -> bool:
        """Whether the program, or a library of its own, can change the name that the system shows of it."""
        own = [m for m in self.modules if not m.name.startswith((*C_LIBRARIES, "["))]
        return any(module.functions.mentions(name) for module in own for name in RENAMERS)

    # Names

    def find(self, where: Where, *, everywhere: bool = False) -> list[Location]:
        """All locations that a place stands for; raises ProbeError."""
        return resolve(self.modules, where, self.process.memory.read, everywhere=everywhere)

    def find_all(self, where: Where, progress: Callable[[int, int], None] | None = None) -> Resolution:
        """The same for several probes: a glob in all modules, with what it matched but cannot be probed."""
        read = self.process.memory.read
        return resolve_all(self.modules, where, read, everywhere=where.is_glob, progress=progress)

    def locate(self, probe: Kprobe) -> Location:
        """The one location of a probe; raises ProbeError."""
        if probe.requested_address is not None:
            return self.at(probe.requested_address)
        assert probe.where is not None
        found = self.find(probe.where)
        if len(found) > 1:
            names = ", ".join(f"{each.module.name}:{each.symbol}" for each in found[:4])
            more = f" and {len(found) - 4} more" if len(found) > 4 else ""
            raise ProbeError(str(probe.where), errors.AMBIGUOUS, names + more)
        return found[0]

    def at(self, address: int) -> Location:
        """The location of a run-time address; raises ProbeError NOT_IN_TEXT."""
        module = self.symbolizer.module(address)
        own = address - module.bias if module is not None else 0
        if module is None or not module.elf.in_text(own):
            raise ProbeError(f"{address:#x}", errors.NOT_IN_TEXT)
        function = module.functions.containing(own)
        if function is None:
            return Location(module, None, module.name, own, address)
        return Location(module, function, function.name, own - function.start, address)

    def variable(self, variable: SymbolMemory) -> int:
        """The run-time address of a variable named in a fetch argument; raises ProbeError."""
        return data_address(self.modules, variable.module, variable.symbol, variable.offset)

    @property
    def symbolizer(self) -> Symbolizer:
        if self._symbolizer is None:
            self._symbolizer = Symbolizer(self.modules, self._shown_as)
        return self._symbolizer

    def show_as(self, location: Location) -> None:
        """Call the function of a location by the name that it was asked for, in backtraces, too."""
        if location.function is None:
            return
        start = location.function.start + location.module.bias
        usual = location.module.functions.at(location.function.start)
        if start in self._shown_as or usual is None or usual.name != location.symbol:
            self._shown_as[start] = location.symbol
            self.symbolizer.choose(start, location.symbol)

    # Verdicts

    def verdict(self, location: Location) -> Placement | Refusal:
        """How a probe at the location is placed, or which rule forbids it."""
        found = verdict(self._context(location.module), location.address)
        if isinstance(found, Placement) and found.interior:
            if _is_go(location.module):
                # A preempted goroutine's instruction pointer is saved in a form that nobody can find from
                # outside.
                detail = "the Go runtime keeps saved instruction pointers of goroutines in its heap"
                return Refusal(errors.SAVED_IP, detail)
            if self.process.hides_contexts and self.process.resident > SEARCHED_AT_MOST:
                detail = "the program switches stacks, and has more memory than can be searched for them"
                return Refusal(errors.SAVED_IP, detail)
        return found

    def nearest(self, location: Location) -> Location | None:
        """The nearest other instruction of the function that can be probed."""
        function = location.function
        if function is None:
            return None

        def moved(address: int) -> Location:
            return replace(location, offset=address - location.module.bias - function.start, address=address)

        context = self._context(location.module)
        found = nearest(context, location.address, lambda address: self.verdict(moved(address)))
        return None if found is None else moved(found)

    def _context(self, module: Module) -> ModuleContext:
        context = self._contexts.get(module)
        if context is None:
            is_file, is_shared = self._private[module]
            context = self._contexts[module] = ModuleContext(
                file=module.elf,
                functions=module.functions,
                name=module.name,
                bias=module.bias,
                memory=self.original_bytes,
                is_file=is_file,
                is_copied=not is_file and module.name != VDSO,
                is_shared=is_shared,
                batch=self._batch,
            )
        return context

    def original_bytes(self, address: int, size: int) -> bytes:
        """What is in memory, but for our own jumps; short where memory ends."""
        return self.registry.without_jumps(address, self.process.memory.read_available(address, size))

    def liveness(self, location: Location, address: int, scratch: int) -> liveness.Liveness:
        """What is live at a probepoint, for code that needs so many registers."""
        context = self._context(location.module)
        own = address - location.module.bias
        function = context.function_at(own)
        assert function is not None  # a verdict was given
        code = context.code_of(function)
        entry = _is_entry(context, function.start, own)
        for reach in (FIRST_LOOK, LOOK_AHEAD):
            code.decode_to(min(own + reach, code.end - 1))
            found = liveness.live(code.instructions, own, entry=entry, enough=scratch)
            if (len(found.dead) >= scratch and not found.flags) or code.reach >= code.end:
                break
        return found

    def is_entry(self, location: Location, placement: Placement) -> bool:
        """Whether the probe is where a call arrives: the function's first instruction, or behind its
        endbr64."""
        function = location.function
        if function is None:
            return False
        own = placement.address - location.module.bias
        return _is_entry(self._context(location.module), function.start, own)

    def span(self, module: Module) -> Range:
        """All addresses of a module: what its instructions refer to directly."""
        span = self._spans.get(module)
        if span is None:
            span = Range(min(r.start for r in module.ranges), max(r.end for r in module.ranges))
            self._spans[module] = span
        return span


def _is_entry(context: ModuleContext, start: int, address: int) -> bool:
    if address == start:
        return True
    behind = start + ENDBR64_SIZE
    return address == behind and context.bytes_at(start, behind) == b"\xf3\x0f\x1e\xfa"


def _switches_stacks(module: Module) -> bool:
    functions = module.functions
    if functions.mentions("swapcontext"):
        return True
    return functions.mentions("setcontext") and not functions.named(SYNCHRONOUS)


def _is_go(module: Module) -> bool:
    return any(module.elf.section(name) is not None for name in GO_SECTIONS)
