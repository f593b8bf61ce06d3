"""How every instruction of a file can be probed: for `sidestep check -f FILE --all`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from sidestep.arch.x86_64.placement import is_padding
from sidestep.errors import NOT_DECODABLE, UNREACHABLE, Refusal
from sidestep.safety.blacklist import refused_module
from sidestep.safety.boundary import Boundary
from sidestep.safety.context import Bounds, ModuleContext
from sidestep.safety.leads import leads_of
from sidestep.safety.region import Placement
from sidestep.safety.verdict import verdict_at


@dataclass
class Census:
    """Counts of instructions: by tactic, and by the name of the reason where one is refused.

    `examples` has the first detail of each reason. `before` counts placements whose region starts before
    the instruction (they are in `tactics` as well).
    """

    functions: int = 0
    instructions: int = 0
    undecodable: int = 0
    before: int = 0
    tactics: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    @property
    def placed(self) -> int:
        return self.tactics.total()

    def add(self, answer: Placement | Refusal) -> None:
        self.instructions += 1
        if isinstance(answer, Placement):
            self.tactics[answer.tactic] += 1
            self.before += answer.start != answer.address
        else:
            self.refusals[answer.reason.name] += 1
            self.examples.setdefault(answer.reason.name, answer.detail)


def take_census(
    context: ModuleContext, functions: Iterable[Bounds], progress: Callable[[int], None] | None = None
) -> Census:
    """Judge every instruction of `functions`. `progress` is called with the number of functions done so far.

    Instructions that two functions share (one is inside the other) count once, for the innermost.
    """
    census = Census()
    for function in functions:
        census.functions += 1
        for answer in answers(context, function):
            if answer is None:
                census.undecodable += 1
                census.examples.setdefault(NOT_DECODABLE.name, f"in {function.name}")
            else:
                census.add(answer)
        if progress is not None:
            progress(census.functions)
    return census


def answers(context: ModuleContext, function: Bounds) -> Iterator[Placement | Refusal | None]:
    """The verdict about each instruction of a function, in order, padding left out; None at its
    end if the rest cannot be decoded."""
    code = context.code_of(function)
    complete = code.decode_all()
    leads = leads_of(context, code)
    refusal = refused_module(context)
    nested = bool(context.named_starts(function.start + 1, function.end))
    for index, start in enumerate(code.boundaries[:-1]):
        if nested and not _is_innermost(context, function, start):
            continue
        doubt = leads.doubt(start) if index else None
        if doubt is not None and doubt.reason is UNREACHABLE and is_padding(code.instructions[index]):
            continue
        yield refusal or doubt or verdict_at(context, Boundary(code, index))
    if not complete:
        yield None


def _is_innermost(context: ModuleContext, function: Bounds, address: int) -> bool:
    innermost = context.function_at(address)
    return innermost is None or innermost.start == function.start
