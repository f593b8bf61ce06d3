"""Counting: exact, by process, and with nothing of the program changed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from detours.player import (
    ALL_LIVE,
    DIRECTION_FLAG,
    KEEPS_ALL,
    STATUS_FLAGS,
    TEXT,
    Player,
    Returned,
)
from sidestep.arch.x86_64.detour import Count
from sidestep.arch.x86_64.insn import GENERAL_REGISTERS
from sidestep.arch.x86_64.liveness import SCRATCH_REGISTERS, Liveness
from sidestep.events.layout import BLOCK_COUNT, FIRST_FREE_BLOCK, KIND_PROCESS, KIND_THREAD, SHARED_BLOCK

PLACES = range(TEXT, TEXT + (1 << 16), 64)


def random_registers(source: random.Random) -> dict[str, int]:
    registers = {name: source.getrandbits(64) for name in GENERAL_REGISTERS if name != "rsp"}
    registers["flags"] = 0x202 | source.getrandbits(12) & STATUS_FLAGS | source.choice((0, DIRECTION_FLAG))
    return registers


def assert_kept(before: dict[str, int], after: Returned, live: Liveness) -> None:
    """Everything that is live is as it was; red zone, direction flag and vector registers always are."""
    for name in live.registers & before.keys():
        assert after.registers[name] == before[name], name
    mask = (STATUS_FLAGS if live.flags else 0) | DIRECTION_FLAG
    assert after.registers["flags"] & mask == before["flags"] & mask
    assert after.red_zone_kept
    assert after.vectors_kept


def livenesses(source: random.Random, count: int) -> list[Liveness]:
    """All live, nothing live, and random ones."""
    choices = [
        ALL_LIVE,
        Liveness(frozenset(GENERAL_REGISTERS) - set(SCRATCH_REGISTERS), False, SCRATCH_REGISTERS),
    ]
    while len(choices) < count:
        dead = tuple(name for name in SCRATCH_REGISTERS if source.random() < 0.4)
        choices.append(Liveness(frozenset(GENERAL_REGISTERS) - set(dead), source.random() < 0.5, dead))
    return choices


@pytest.mark.parametrize("by_thread", [True, False])
def test_what_is_live_is_kept(player: Player, by_thread: bool) -> None:
    source = random.Random(1)
    cases = list(zip(PLACES, livenesses(source, 24), strict=False))
    surroundings = player.surroundings(by_thread=by_thread)
    for index, (place, live) in enumerate(cases):
        player.probe(place, KEEPS_ALL, [Count(index)], surroundings, live)
    player.run()
    for index, (place, live) in enumerate(cases):
        for hits in range(1, 4):
            before = random_registers(source)
            assert_kept(before, player.call(place, **before), live)
            assert player.counters.total(index) == hits


def test_every_combination_of_status_flags_is_kept(player: Player) -> None:
    player.probe(TEXT, KEEPS_ALL, [Count(0)], liveness=ALL_LIVE)
    player.run()
    bits = [1 << bit for bit in range(12) if STATUS_FLAGS >> bit & 1]
    for number in range(1 << len(bits)):
        flags = 0x202 + sum(bit for place, bit in enumerate(bits) if number >> place & 1)
        assert player.call(TEXT, flags=flags).registers["flags"] == flags


def test_threads_count_exactly(player: Player) -> None:
    player.probe(TEXT, KEEPS_ALL, [Count(3)])
    player.run()
    player.ask("hammer", TEXT, 4, 500_000)
    assert player.counters.totals(5) == [0, 0, 0, 2_000_000, 0]
    kinds = [entry.kind for block, entry in player.counters.blocks() if block != SHARED_BLOCK]
    assert kinds == [KIND_THREAD] * 4


def test_threads_without_blocks_of_their_own_count_exactly(player: Player) -> None:
    player.probe(TEXT, KEEPS_ALL, [Count(0)], player.surroundings(by_thread=False))
    player.run()
    player.ask("hammer", TEXT, 4, 100_000)
    assert player.counters.total(0) == 400_000
    assert [entry.kind for _, entry in player.counters.blocks()][1:] == [KIND_PROCESS]


def test_more_threads_than_blocks_count_exactly(player: Player) -> None:
    """Blocks are claimed until none is left; then the hits go to the process's block or the shared one."""
    player.probe(TEXT, KEEPS_ALL, [Count(0)])
    player.run()
    for threads in (200, 250, 250):
        player.ask("hammer", TEXT, threads, 100)
    assert player.counters.total(0) == 70_000
    assert sum(player.counters.by_pid(0).values()) == 70_000
    assert len(player.counters.blocks()) <= BLOCK_COUNT - 1


def test_a_stack_that_is_used_again_uses_its_block_again(player: Player) -> None:
    player.probe(TEXT, KEEPS_ALL, [Count(0)])
    player.run()
    player.ask("churn", TEXT, 100, 2)
    assert player.counters.total(0) == 200
    assert len(player.counters.blocks()) < 20


def test_forked_children_are_counted_under_their_pid(player: Player) -> None:
    player.probe(TEXT, KEEPS_ALL, [Count(0)])
    player.probe(TEXT + 64, KEEPS_ALL, [Count(1)], player.surroundings(by_thread=False))
    player.run()
    parent = player.pid
    player.call(TEXT)
    player.call(TEXT + 64)
    children = {}
    for count in (10, 20, 30):
        for index in (0, 1):
            child, status = map(int, player.ask("fork", TEXT + 64 * index, count, 2).split())
            assert status == 0
            children[child] = (index, 3 * count)
    for index in (0, 1):
        expected = {parent: 1, **{child: hits for child, (at, hits) in children.items() if at == index}}
        assert player.counters.by_pid(index) == expected


def test_a_vfork_child_is_counted_under_its_parent(player: Player) -> None:
    player.probe(TEXT, KEEPS_ALL, [Count(0)])
    player.run()
    player.call(TEXT)
    child, status = map(int, player.ask("vfork", TEXT, 10).split())
    assert status == 0
    assert child != player.pid
    assert player.counters.by_pid(0) == {player.pid: 11}


def test_signal_handlers_that_hit_the_probe_again(player: Player) -> None:
    player.probe(TEXT, KEEPS_ALL, [Count(0)], liveness=ALL_LIVE)
    player.run()
    handled = int(player.ask("signals", TEXT, 3_000_000))
    assert player.counters.total(0) == 3_000_000 + handled


def test_the_blocks_of_a_process_that_ended_can_be_used_again(player: Player) -> None:
    player.probe(TEXT, KEEPS_ALL, [Count(0)])
    player.run()
    player.call(TEXT)
    for _ in range(3):
        child, _ = map(int, player.ask("fork", TEXT, 7, 90).split())
        expected = player.counters.by_pid(0)
        assert expected[child] == 7 * 91
        assert list(player.counters.ended(lambda pid: Path(f"/proc/{pid}").exists())) == [child]
        player.counters.retire(child, 1)
        assert player.counters.by_pid(0) == expected
    assert [block for block, _ in player.counters.blocks()] == [SHARED_BLOCK, FIRST_FREE_BLOCK]


def test_several_counts_at_one_address(player: Player) -> None:
    player.probe(TEXT, KEEPS_ALL, [Count(0), Count(1), Count(2)], liveness=ALL_LIVE)
    player.run()
    before = random_registers(random.Random(2))
    for _ in range(3):
        assert_kept(before, player.call(TEXT, **before), ALL_LIVE)
    assert player.counters.totals(4) == [3, 3, 3, 0]


def test_a_probe_inside_the_region_of_another(player: Player) -> None:
    # inc %rax; dec %rcx; add $5,%rdx; ret
    code = bytes.fromhex("48ffc0 48ffc9 4883c205 c3")
    buffer = player.probe(
        TEXT, code, {0: [Count(0)], 3: [Count(1)], 6: [Count(2)]}, liveness=ALL_LIVE, size=10
    )
    player.run()
    after = player.call(TEXT, rax=1, rcx=1, rdx=1)
    assert [after.registers[name] for name in ("rax", "rcx", "rdx")] == [2, 0, 6]
    assert player.counters.totals(3) == [1, 1, 1]
    # A thread that is moved to the copy of an instruction is not counted there again.
    copies = dict(buffer.boundaries)
    after = player.call(copies[TEXT + 3], rax=1, rcx=1, rdx=1)
    assert [after.registers[name] for name in ("rax", "rcx", "rdx")] == [1, 0, 6]
    assert player.counters.totals(3) == [1, 1, 2]


def test_points_are_where_the_state_is_the_programs(player: Player) -> None:
    """At each point the program's state is at hand; the start of the actions is one, too."""
    code = bytes.fromhex("48ffc0 48ffc9 4883c205 c3")
    buffer = player.probe(TEXT, code, {0: [Count(0)], 3: [Count(1)]}, liveness=ALL_LIVE, size=10)
    untouched = TEXT + 1024
    player.poke(untouched, code)
    player.run()
    assert (buffer.address, TEXT) in [(point.new, point.old) for point in buffer.points]
    assert [point.new for point in buffer.points] == sorted(point.new for point in buffer.points)
    for point in buffer.points:
        expected = player.call(untouched + point.old - TEXT, rax=5, rcx=6, rdx=7)
        reached = player.call(point.new, rax=5, rcx=6, rdx=7)
        assert reached.registers == expected.registers
