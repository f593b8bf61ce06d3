"""Where a handler may go on: what it sets `regs.ip` to, as far as that is known before it runs."""

from __future__ import annotations

from typing import NamedTuple

from sidestep.compiler.ir import Constant, Function, Operation, Value

MOST = 8  # places
INSTRUCTION_POINTER = "ip"


class _Sum(NamedTuple):
    """A number, added to the probe's address or to nothing."""

    is_address: bool
    number: int


def exits(function: Function) -> frozenset[int] | None:
    """The distances from the probe's address to where the handler may go on; None: not known, or too many.

    Only candidates: what is left out here is an error of the handler when it happens.
    """
    search = _Search(function)
    found: set[_Sum] = set()
    for operation in function.operations():
        if operation.name == "set_register" and operation.about == INSTRUCTION_POINTER:
            sums = search.sums(operation.arguments[0])
            if sums is None:
                return None
            found |= sums
    known = len(found) <= MOST and all(each.is_address for each in found)
    return frozenset(each.number for each in found) if known else None


class _Search:
    def __init__(self, function: Function) -> None:
        self._made = {each.result: each for each in function.operations() if each.result is not None}
        self._stored: dict[str, list[Value]] = {}
        for operation in function.operations():
            if operation.name == "set_local":
                self._stored.setdefault(operation.about, []).append(operation.arguments[0])
        self._open: set[str] = set()

    def sums(self, value: Value) -> set[_Sum] | None:
        """What a value may be; None: not known."""
        if isinstance(value, Constant):
            return {_Sum(False, value.value)}
        operation = self._made[value]
        if operation.name == "probe_address":
            return {_Sum(True, 0)}
        if operation.name == "register" and operation.about == INSTRUCTION_POINTER:
            return {_Sum(True, 0)}
        if operation.name == "get_local":
            return self._local(operation.about)
        return self._sum(operation) if operation.name in ("add", "sub") else None

    def _local(self, name: str) -> set[_Sum] | None:
        if name in self._open:  # it depends on itself
            return None
        self._open.add(name)
        found: set[_Sum] = set()
        for value in self._stored.get(name, ()):
            sums = self.sums(value)
            if sums is None or len(found) > MOST:
                return None
            found |= sums
        self._open.remove(name)
        return found

    def _sum(self, operation: Operation) -> set[_Sum] | None:
        left, right = (self.sums(argument) for argument in operation.arguments)
        if left is None or right is None or len(left) * len(right) > MOST:
            return None
        sign = 1 if operation.name == "add" else -1
        if any(b.is_address and (a.is_address or sign < 0) for a in left for b in right):
            return None
        return {_Sum(a.is_address or b.is_address, a.number + sign * b.number) for a in left for b in right}
