"""What probe texts stand for, registered: a probe each, or with a glob all that can be placed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableSequence, Sequence
from dataclasses import dataclass
from functools import partial

from sidestep import errors
from sidestep.errors import ProbeError
from sidestep.kprobes.manager import KprobeManager, Progress, Refused
from sidestep.kprobes.placer import Request
from sidestep.kprobes.places import Places
from sidestep.probes import Kprobe
from sidestep.spec import ProbeSpec


@dataclass(frozen=True, slots=True)
class Batch:
    """What one call registered: the probes, which it iterates over, and with globs what was refused."""

    probes: Sequence[Kprobe]
    refused: Sequence[Refused]

    def __iter__(self) -> Iterator[Kprobe]:
        return iter(self.probes)

    def __len__(self) -> int:
        return len(self.probes)


def _looking(progress: Progress, number: int, specs: int, done: int, modules: int) -> None:
    """All specs as one piece of work: each is looked for in all modules."""
    progress("looking for functions", number * modules + done, specs * modules)


def refuse_return(spec: ProbeSpec) -> None:
    """Raises ProbeSyntaxError for a return probe."""
    if spec.kind == "r":
        raise spec.error(0, "return probes are not there yet", "use p:")


def register_specs(
    manager: KprobeManager,
    places: Places,
    specs: Iterable[ProbeSpec],
    make: Callable[[ProbeSpec], Kprobe],
    progress: Progress | None = None,
) -> Batch:
    """Register what `make` makes of each spec, once for each place that it stands for.

    Raises ProbeError, with everything as it was before, for a named probe that is refused, and when nothing
    is left of globs.
    """
    specs = list(specs)
    places.show(progress)
    named: MutableSequence[Request] = []
    globbed: MutableSequence[Request] = []
    refused: MutableSequence[Refused] = []
    asked: MutableSequence[str] = []
    for number, spec in enumerate(specs):
        refuse_return(spec)
        places.refresh()
        looking = None if progress is None else partial(_looking, progress, number, len(specs))
        found, unresolved = places.find_all(spec.where, looking)
        refused += [Refused(error.subject, error.refusal) for error in unresolved]
        requests = [Request(make(spec), each) for each in found]
        (globbed if spec.where.is_glob or len(found) > 1 else named).extend(requests)
        asked.append(spec.text)
    if named:
        manager.register(named, progress=progress)
    try:
        if globbed:
            refused += manager.register(globbed, partly=True, progress=progress)
    except BaseException:
        manager.unregister([request.probe for request in named])
        raise
    probes = [request.probe for request in (*named, *globbed) if request.probe.registered]
    if refused and not probes:
        first = refused[0]
        detail = f"{len(refused)} refused, the first: {first.probe}: {first.refusal.reason.sentence}"
        raise ProbeError(" ".join(asked), errors.NOTHING_LEFT, detail)
    return Batch(probes, refused)
