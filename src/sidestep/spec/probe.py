"""A whole probe as the text describes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sidestep.errors import ProbeSyntaxError
from sidestep.spec.nodes import Dereference, Fetch, FetchArgument, Kind, Node, Where
from sidestep.spec.terms import Condition, FetchOperand, Name, operands


@dataclass(frozen=True, slots=True)
class ProbeSpec:
    """A whole probe text.

    `maxactive` None is the default pool. `group` and `event` are None where the text names none.
    `text` is the text as written (not compared), which the columns of all nodes point into.
    """

    kind: Kind
    maxactive: int | None
    group: str | None
    event: str | None
    where: Where
    arguments: tuple[FetchArgument, ...] = ()
    condition: Condition | None = None
    text: str = field(default="", compare=False)

    def error(self, node: Node | int, message: str, hint: str = "") -> ProbeSyntaxError:
        """An error with its caret under `node` (or a column), for what shows only later."""
        column = node if isinstance(node, int) else node.column
        return ProbeSyntaxError(self.text, column, message, hint)


def only_recorded(spec: ProbeSpec) -> list[str]:
    """The names of the arguments that the condition does not look at."""
    looked_at = () if spec.condition is None else operands(spec.condition)
    names = {operand.name for operand in looked_at if isinstance(operand, Name)}
    return [argument.name for argument in spec.arguments if argument.name not in names]


def fetches(spec: ProbeSpec) -> Iterator[Fetch]:
    """Every fetch of the arguments and the condition, each before the one inside it."""
    outer = [argument.fetch for argument in spec.arguments]
    if spec.condition is not None:
        outer += [operand.fetch for operand in operands(spec.condition) if isinstance(operand, FetchOperand)]
    for fetch in outer:
        yield fetch
        while isinstance(fetch, Dereference):
            fetch = fetch.inner
            yield fetch
