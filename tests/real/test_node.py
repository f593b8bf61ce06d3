"""node: code made while it runs, garbage collection, a pool of threads, its own handlers for faults."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from harness.programs import run_through, run_until_done
from harness.running import Running
from real.conftest import find_program, probing

Run = Callable[..., Running]

SCRIPT = """
const crypto = require("crypto"), fs = require("fs"), zlib = require("zlib");
const { execFileSync } = require("child_process");
const lines = require("readline").createInterface({ input: process.stdin })[Symbol.asyncIterator]();

async function wait(word) {
    fs.writeSync(1, word + "\\n");
    await lines.next();
}

function say(name, value) { fs.writeSync(1, name + " " + value + "\\n"); }

function numbers() {
    let sum = 0;
    for (let turn = 0; turn < 3000000; turn++) sum = (sum * 31 + turn) % 1000003;
    return sum;
}

function objects() {
    const table = {};
    for (let turn = 0; turn < 50000; turn++) table["key" + turn % 5000] = { turn, list: [turn, turn + 1] };
    return JSON.stringify(table).length;
}

async function pool() {
    const work = [];
    for (let turn = 0; turn < 8; turn++)
        work.push(new Promise((resolve, reject) => crypto.pbkdf2("word", "salt" + turn, 2000, 16, "sha256",
            (error, key) => error ? reject(error) : resolve(key.toString("hex")))));
    return (await Promise.all(work)).join(",");
}

async function files() {
    const data = Buffer.alloc(200000, "abc");
    const packed = await new Promise((resolve) => zlib.gzip(data, (_, result) => resolve(result)));
    await fs.promises.writeFile("packed", packed);
    return zlib.gunzipSync(await fs.promises.readFile("packed")).toString().length;
}

function faults() {
    let caught = 0;
    for (let turn = 0; turn < 1000; turn++) try { null.x; } catch { caught++; }
    return caught;
}

// A module with one function, load, that reads memory at its argument.
const bytes = new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0, 1, 6, 1, 96, 1, 127, 1, 127, 3, 2, 1, 0, 5, 3,
    1, 0, 1, 7, 8, 1, 4, 108, 111, 97, 100, 0, 0, 10, 9, 1, 7, 0, 32, 0, 40, 2, 0, 11]);

function outside() {
    const { load } = new WebAssembly.Instance(new WebAssembly.Module(bytes)).exports;
    let trapped = 0;
    for (let turn = 0; turn < 200; turn++) try { load(turn % 2 ? 8 : 1 << 20); } catch { trapped++; }
    return trapped;
}

(async () => {
    await wait("ready");
    say("numbers", numbers());
    say("objects", objects());
    say("pool", await pool());
    say("files", await files());
    say("faults", faults());
    say("outside", outside());
    say("child", execFileSync(process.execPath, ["-p", "6 * 7"]).toString().trim());
    await wait("done");
    process.exit(5);
})();
"""


@pytest.fixture
def start(run: Run, tmp_path: Path) -> Callable[[], Running]:
    (tmp_path / "script.js").write_text(SCRIPT)
    return lambda: run(find_program("node"), tmp_path / "script.js", time_limit=100)


@pytest.mark.parametrize(
    "probes",
    [("uv_*",), ("libc:*alloc", "libc:free", "libc:mem*"), ("libc:*",)],
    ids=["uv", "memory", "libc"],
)
def test_results_are_the_same(
    sidestep: ModuleType, start: Callable[[], Running], probes: tuple[str, ...]
) -> None:
    expected = run_through(start())
    assert expected.status == 5
    running = start()
    running.expect("ready")
    with probing(sidestep, running.pid, *probes, makes_code=True) as found:
        running.send()
        assert run_until_done(running)
        assert sum(probe.hits for probe in found.values()) > 100
    running.send()
    outcome = running.finish()
    assert (outcome.output, outcome.status) == (expected.output, expected.status), str(outcome)


def test_the_program_is_one_module_by_name(sidestep: ModuleType, start: Callable[[], Running]) -> None:
    """V8 maps its own builtins once more, near its heap: functions elsewhere are there once."""
    running = start()
    running.expect("ready")
    with sidestep.attach(running.pid) as target:
        (found,) = target.functions("uv_run")
        assert target.resolve("node:uv_run").address == found.address
        assert found.module.is_whole
