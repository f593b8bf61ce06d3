"""The sqlite3 shell, whose interpreter of byte code is one huge switch."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from harness.running import Outcome, Running
from real.conftest import find_program, probing

Run = Callable[..., Running]

QUERIES = 200

STATEMENTS = [
    "create table t(a integer primary key, b text, c real);",
    "with recursive n(i) as (select 1 union all select i + 1 from n where i < 20000)"
    " insert into t select i, 'row ' || i % 100, i * 0.5 from n;",
    "create index t_b on t(b);",
    "select count(*), sum(a), round(avg(c), 3) from t where b like 'row 1%';",
    "select b, count(*) from t group by b order by 2 desc, b limit 5;",
    "update t set c = c + length(b) where a % 3 = 0;",
    "delete from t where a % 7 = 0;",
    "select round(total(c), 3), max(b), min(a) from t;",
    *[f"select {number} + count(*) from t where a < {number * 50};" for number in range(QUERIES)],
    "select hex(zeroblob(4)), upper('done'), printf('%05d', 42);",
]


def converse(run: Run, probes: Callable[[Running], object] | None = None) -> Outcome:
    """A session of the shell; `probes(running)` is a `with` around the statements."""
    running = run(find_program("sqlite3"), "-batch", ":memory:", time_limit=60)
    running.send("select 'ready';")
    running.expect("ready")

    def talk() -> None:
        for statement in STATEMENTS:
            running.send(statement)
        running.send("select 'done';")
        running.expect("done")

    if probes is None:
        talk()
    else:
        with probes(running):  # type: ignore[attr-defined]
            talk()
    running.send(".quit")
    return running.finish()


@pytest.mark.parametrize(
    "probes",
    [("libsqlite3:sqlite3_*",), ("libsqlite3:*",), ("libc:mem*", "libc:str*", "libc:*alloc")],
    ids=["interface", "everything", "libc"],
)
def test_answers_are_the_same(sidestep: ModuleType, run: Run, probes: tuple[str, ...]) -> None:
    expected = converse(run)
    outcome = converse(run, lambda running: probing(sidestep, running.pid, *probes))
    assert (outcome.output, outcome.errors, outcome.status) == (
        expected.output,
        expected.errors,
        expected.status,
    ), str(outcome)


def test_statements_are_counted(sidestep: ModuleType, run: Run) -> None:
    """The shell prepares each statement once, and steps once for each row and once for the end."""
    running = run(find_program("sqlite3"), "-batch", ":memory:", time_limit=60)
    running.send("select 'ready';")
    running.expect("ready")
    with probing(sidestep, running.pid, "libsqlite3:sqlite3_prepare_v2", "libsqlite3:sqlite3_step") as probes:
        for number in range(100):
            running.send(f"select {number};")
        running.expect("99")
        running.send("select 'done';")
        running.expect("done")
        assert probes["sqlite3_prepare_v2"].hits == 101
        assert probes["sqlite3_step"].hits == 202
    running.send(".quit")
    assert running.finish().status == 0
