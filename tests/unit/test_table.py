"""Tables under every order of steps that chance finds: threads that stop before each access to memory."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from sidestep.compiler.integers import u64
from sidestep.compiler.machine import HandlerFault, Machine, on
from sidestep.handlers.base import Simulated, Snapshot
from sidestep.handlers.hash import Hash
from sidestep.handlers.table import CONTROL_SIZE, KEY, MEMBERS

KEYS = 3
OPERATIONS = 4  # of each thread


class Turns:
    """Lets one thread go on at a time, chosen by chance."""

    def __init__(self, seed: int, count: int) -> None:
        self._source = random.Random(seed)
        self._changed = threading.Condition()
        self._waiting: set[int] = set()
        self._running, self._chosen = count, -1

    def step(self, thread: int) -> None:
        with self._changed:
            self._waiting.add(thread)
            self._choose()
            self._changed.wait_for(lambda: self._chosen == thread)
            self._waiting.remove(thread)
            self._chosen = -1

    def end(self) -> None:
        with self._changed:
            self._running -= 1
            self._choose()

    def _choose(self) -> None:
        if self._chosen == -1 and self._waiting and len(self._waiting) == self._running:
            self._chosen = self._source.choice(sorted(self._waiting))
            self._changed.notify_all()


@dataclass
class Checked(Machine):
    """Memory that all threads of a test share, and what must hold at each step."""

    table: Hash | None = None
    turns: Turns | None = None
    additions: int = 0
    local: threading.local = field(default_factory=threading.local)

    def _stop(self) -> None:
        if self.turns is not None:
            self.turns.step(self.local.thread)

    def load(self, address: int) -> int:
        self._stop()
        return super().load(address)

    def store(self, address: int, value: int) -> None:
        self._stop()
        super().store(address, value)

    def add_to(self, address: int, amount: int) -> None:
        self._stop()
        super().add_to(address, amount)

    def exchange_pair(self, address: int, low: int, high: int, new_low: int, new_high: int) -> bool:
        self._stop()
        done = super().exchange_pair(address, low, high, new_low, new_high)
        assert self.table is not None
        if done and address != self.table.address:
            assert self.words[address + KEY] == self.local.key, "a slot of another key was changed"
        members = self.members()
        assert len(members) == len(set(members)), "a key is there twice"
        return done

    def members(self) -> list[int]:
        assert self.table is not None
        masks = self.words.get(self.table.address, 0) & MEMBERS
        first = self.table.address + CONTROL_SIZE + KEY
        return [self.words[first + index * self.table.slot_size] for index in range(32) if masks >> index & 1]


def run(seed: int, threads: int, choices: str, capacity: int, *, deletable: bool = True) -> Checked:
    """Threads that add to keys, take them out, and look for them."""
    with on(Checked()) as machine:
        assert isinstance(machine, Checked)
        table = machine.table = Hash(capacity, deletable=deletable)
        machine.turns = Turns(seed, threads)
        failures: list[BaseException] = []

        def work(number: int) -> None:
            source = random.Random(seed * 100 + number)
            machine.local.thread = number
            try:
                with on(machine):
                    for _ in range(OPERATIONS):
                        key, choice = u64(1 + source.randrange(KEYS)), source.choice(choices)
                        machine.local.key = key
                        machine.additions += choice == "a"
                        _operation(table, choice)(key)
            except BaseException as failure:  # for the thread that judges
                failures.append(failure)
            finally:
                assert machine.turns is not None
                machine.turns.end()

        workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if failures:
            raise failures[0]
        machine.turns = None
    return machine


def _operation(table: Hash, name: str) -> Callable[[u64], object]:
    def look(key: u64) -> None:
        assert table.native_get(key) <= OPERATIONS * 8

    return {
        "a": lambda key: table.native_add(key, u64(1)), "d": table.native_delete, "g": look,
    }[name]  # fmt: skip


SHAPES = [(2, 8), (3, 8), (3, 2)]
SCHEDULES = 30


@pytest.mark.parametrize(("threads", "capacity"), SHAPES)
@pytest.mark.parametrize("deletable", [False, True])
def test_no_addition_is_lost(threads: int, capacity: int, deletable: bool) -> None:
    for seed in range(SCHEDULES):
        machine = run(seed, threads, "ag", max(capacity, KEYS), deletable=deletable)
        assert machine.table is not None
        with on(machine):
            assert sum(machine.table.to_dict().values()) == machine.additions
            assert not machine.table.drops


@pytest.mark.parametrize(("threads", "capacity"), SHAPES)
def test_keys_come_and_go(threads: int, capacity: int) -> None:
    """A slot is only changed for its own key, and no key is there twice: checked at each step."""
    for seed in range(SCHEDULES):
        machine = run(seed, threads, "aaddg", capacity)
        assert machine.table is not None
        with on(machine):
            found = machine.table.to_dict()
            assert set(found) == set(machine.members())
            taken = machine.load(machine.table.address) >> 32
            assert taken == machine.load(machine.table.address) & MEMBERS, "a slot was not given back"
            assert len(found) <= capacity


class Restless(Snapshot):
    """A target that changes a table before every exchange."""

    def words(self, address: int, count: int) -> Sequence[int]:
        return [5] * count

    def exchange_pair(self, address: int, old: tuple[int, int], new: tuple[int, int]) -> bool:
        return False


def test_a_target_that_never_rests_holds_nobody_up() -> None:
    with on(Machine()):
        table = Hash(8, deletable=True)
        table._storage = Restless(Simulated(), table)
    for change in (lambda: table.add(1), lambda: table.__delitem__(5), table.reset):
        with pytest.raises(HandlerFault, match="keeps changing"):
            change()


def test_whoever_stops_in_the_middle_holds_nobody_up() -> None:
    """After each number of steps of one thread another one finds a table that works."""
    for steps in range(60):
        with on(Checked()) as machine:
            assert isinstance(machine, Checked)
            table = machine.table = Hash(8, deletable=True)
            machine.local.key = u64(2)
            left = steps

            class Stopped(Exception):
                pass

            def stop() -> None:
                nonlocal left
                left -= 1
                if left < 0:
                    raise Stopped

            machine._stop = stop  # type: ignore[method-assign]
            try:
                table.native_add(u64(2), u64(5))
                table.native_delete(u64(2))
                table.native_add(u64(2), u64(5))
            except Stopped:
                pass
            machine._stop = lambda: None  # type: ignore[method-assign]
            before = table[2]
            table.native_add(u64(2), u64(1))
            assert table[2] == before + 1
            table.native_delete(u64(2))
            assert table.to_dict() == {}
