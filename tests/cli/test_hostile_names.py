"""Names and texts that the target chose: none of them can act on a terminal, or break a line of JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.conftest import Command
from harness.running import Running
from harness.samples import Samples
from sidestep.errors import SidestepError

pytestmark = pytest.mark.process

Start = Callable[..., Running]

SOURCE = r"""
#include <poll.h>
#include <stdio.h>
#include <sys/prctl.h>

#define HIDDEN(name) __attribute__((noipa)) long name(long value, const char *text) { return value + *text; }
HIDDEN(hostileAAA) HIDDEN(hostileBBB) HIDDEN(hostileCCC) HIDDEN(hostileDDD)

static const char text[] = "t\033[31m\n\t\"\\\377\302\233\342\200\256";

int main(void)
{
    struct pollfd input = {0, POLLIN, 0};
    prctl(PR_SET_NAME, "c\033[2J\n\"\377\302\233");
    puts("up");
    fflush(stdout);
    while (poll(&input, 1, 1) == 0) {
        hostileAAA(1, text);
        hostileBBB(2, text);
        hostileCCC(3, text);
        hostileDDD(4, text);
    }
    return 0;
}
"""
# Of the same length in UTF-8 as what they replace in the symbol table: a clear screen, a line break with a
# quote, bytes that are no UTF-8 with a C1 control, a right-to-left override.
NAMES = {b"AAA": b"\x1b[J", b"BBB": b'\n"\\', b"CCC": b"\xff\x9b\t", b"DDD": "\u202e".encode()}
FILE = b'h\x1b[1m\n"\\\xff\xc2\x9b\xe2\x80\xae'
GLOB = "*:hostile*"
FIELDS = "t=+0($arg2):string c=$comm"


@pytest.fixture
def hostile(run: Start, samples: Samples, tmp_path: Path) -> Running:
    content = samples(SOURCE, "-O1").read_bytes()
    for plain, name in NAMES.items():
        content = content.replace(b"hostile" + plain, b"hostile" + name)
    program = os.path.join(os.fsencode(tmp_path), FILE)
    Path(os.fsdecode(program)).write_bytes(content)
    os.chmod(program, 0o755)
    running = run(os.fsdecode(program))
    running.expect("up")
    return running


def is_harmless(text: str) -> bool:
    return all(line.isprintable() for line in text.splitlines()) and "\x85" not in text


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (["funcs", GLOB], 0),
        (["check", GLOB], 0),
        (["check", "hostile*J"], 0),
        (["count", GLOB, "--duration", "0.1"], 0),
        (["count", GLOB, "hostile* if 0", "--duration", "0.1"], 0),
        (["trace", f"{GLOB} {FIELDS}", "--stack", "3", "--limit", "9"], 0),
        (["trace", f"{GLOB} f=$arg2:symbol b=+0($arg2):u8[4]", "--limit", "9"], 0),
        (["list"], 0),
        (["clean"], 0),
        (["funcs", "*:hostileX"], 1),
        (["count", "*:hostileX"], 1),
        (["count", "*:hostile*+1"], 1),
        (["count", "*:hostile*+9999"], 1),
        (["trace", "hostile* v=@no_such"], 1),
        (["count", "nothing:hostile*"], 1),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_on_a_terminal(command: Command, hostile: Running, line: list[str], code: int) -> None:
    result = command(line[0], "-p", hostile.pid, *line[1:])
    assert is_harmless(result.output), ascii(result.output)
    assert is_harmless(result.errors), ascii(result.errors)
    assert result.code == code, result.errors


@pytest.mark.parametrize(
    "line",
    [
        ["funcs", GLOB],
        ["check", GLOB],
        ["count", GLOB, "--duration", "0.1"],
        ["trace", f"{GLOB} {FIELDS} f=$arg2:symbol", "--stack", "3", "--limit", "9"],
    ],
    ids=lambda line: line[0],
)
def test_as_json(command: Command, hostile: Running, line: list[str]) -> None:
    result = command(line[0], "-p", hostile.pid, *line[1:], "--format", "json")
    objects = [json.loads(each) for each in result.output.split("\n")[:-1]]
    assert objects, result.errors
    assert result.output.isascii()
    assert result.output.encode().decode("utf-8", "strict")
    # Strict readers refuse lone surrogates.
    assert all(json.dumps(each, ensure_ascii=False).encode() for each in objects)
    if line[0] == "trace":
        assert objects[0]["args"]["t"] == 't\x1b[31m\n\t"\\\\xff\x9b\u202e'
        assert objects[0]["args"]["c"] == 'c\x1b[2J\n"\\xff\x9b'


def test_what_python_is_told(sidestep: object, hostile: Running) -> None:
    import sidestep as api

    with api.attach(hostile.pid) as target:
        batch = target.count(GLOB)
        texts = [
            target.list(),
            target.name,
            repr(target),
            *map(repr, target.modules),
            *map(repr, batch.probes),
        ]
        texts += [f"{probe.name} {probe.symbol} {probe.module} {probe.note}" for probe in batch.probes]
        for wrong in ("*:hostileX", "*:hostile*+1", "nothing:f", "hostile*+9999"):
            with pytest.raises(SidestepError) as caught:
                target.count(wrong)
            texts.append(str(caught.value))
        with pytest.raises(SidestepError) as caught:
            api.attach(hostile.pid)
        texts.append(str(caught.value))
        assert len(batch.probes) == 4
    for text in texts:
        assert is_harmless(text), ascii(text)
