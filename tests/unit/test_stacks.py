"""Stack traces in plain Python and in the interpreter."""

from __future__ import annotations

import pytest

from sidestep.compiler import interpreter, machine
from sidestep.compiler.machine import Machine
from sidestep.compiler.native import native
from sidestep.compiler.registers import Registers
from sidestep.handlers.hash import Hash
from sidestep.handlers.stacks import Stacks

stacks = Stacks(8, depth=3)
counts = Hash(64)


@native
def on_hit(p, regs):  # type: ignore[no-untyped-def]
    counts[stacks.id()] += 1


def hit(simulated: Machine, trace: tuple[int, ...], interpreted: bool) -> None:
    simulated.backtrace = trace
    if interpreted:
        interpreter.run(on_hit.representation, interpreter.Frame())
    else:
        on_hit(None, Registers())


@pytest.mark.parametrize("interpreted", [False, True], ids=["python", "interpreter"])
def test_equal_stacks_have_one_id(interpreted: bool) -> None:
    with machine.on(Machine()) as simulated:
        for trace in ((1, 2, 3, 4), (1, 2, 3, 5), (9,), (1, 2, 3, 6)):
            hit(simulated, trace, interpreted)
        found = {tuple(stacks.frames(key)): count for key, count in counts.to_dict().items()}
        assert found == {(1, 2, 3): 3, (9,): 1}
        assert stacks.frames(12345) == []


@pytest.mark.parametrize("interpreted", [False, True], ids=["python", "interpreter"])
def test_a_new_stack_without_room_is_a_drop(interpreted: bool) -> None:
    with machine.on(Machine()) as simulated:
        for start in range(1, 21):
            hit(simulated, (start,), interpreted)
        assert len(stacks.to_dict()) == 8
        assert stacks.drops == 12
        assert sum(counts.to_dict().values()) == 20
