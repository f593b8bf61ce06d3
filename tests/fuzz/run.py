"""Many mutated inputs for each parser of what a target or its files hold, and a table of what came of it.

    make fuzz                                                     100,000 for each, about an hour
    PYTHONPATH=src:tests python -m fuzz.run --count 5000 --only ELF

Each parser runs in a process of its own with 1 GiB of address space. An input that takes ten seconds, an
error that is not declared, or the end of the process is a failure. Inputs that failed are kept in a folder.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from fuzz.mutation import mutate
from fuzz.parsers import PARSERS, Parser

MEMORY = 1 << 30  # bytes of address space beyond what the process has at its start
SECONDS = 10.0  # for one input
MOST_FAILURES = 20


class TooSlowError(Exception):
    """One input took longer than SECONDS."""


@dataclass(slots=True)
class Result:
    """What came of the inputs of one parser. `slowest` is in seconds of CPU time, `memory` (the most) in
    bytes."""

    name: str
    inputs: int = 0
    accepted: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    memory: int = 0
    failures: list[str] = field(default_factory=list)

    def row(self) -> str:
        return (
            f"{self.name:<32}{self.inputs:>9,}{self.accepted:>10,}{self.seconds:>9.1f}"
            f"{self.slowest * 1000:>10.1f}{self.memory >> 20:>8}{len(self.failures):>10}"
        )


HEADINGS = (
    f"{'PARSER':<32}{'INPUTS':>9}{'ACCEPTED':>10}{'SECONDS':>9}{'SLOWEST MS':>10}{'MIB':>8}{'FAILURES':>10}"
)


def try_inputs(parser: Parser, count: int, number: int, keep: Path | None = None) -> Result:
    """`count` mutations of its seeds, in this process; the same ones for the same `number`."""
    source = random.Random(f"{parser.name} {number}")
    with tempfile.TemporaryDirectory() as folder:
        seeds = parser.seeds(Path(folder))
    assert all(parser.use(seed.data) for seed in seeds), f"{parser.name}: a valid input was refused"
    result = Result(parser.name)
    began = time.perf_counter()
    for _ in range(count):
        data = mutate(source, source.choice(seeds), moves=parser.moves)
        try_one(parser, data, result, keep)
        if len(result.failures) >= MOST_FAILURES:
            break
    result.seconds = time.perf_counter() - began
    result.memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return result


def try_one(parser: Parser, data: bytes, result: Result, keep: Path | None) -> None:
    """One input. `keep` is the folder for those that fail."""
    result.inputs += 1
    began = time.process_time()
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        result.accepted += parser.use(data)
    except Exception:
        text = traceback.format_exc(limit=-6)
        if keep is not None:
            kept = keep / f"{parser.name.replace('/', '-')}.{len(result.failures)}"
            kept.write_bytes(data)
            text = f"{kept}\n{text}"
        result.failures.append(text)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    result.slowest = max(result.slowest, time.process_time() - began)


def limited() -> None:
    """Bounds for this process; an input that is too slow raises TooSlowError."""

    def too_slow(number: int, frame: object) -> None:
        raise TooSlowError

    signal.signal(signal.SIGALRM, too_slow)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, hard))


def in_child(work: Callable[[], Result], name: str) -> Result:
    """Run in a process of its own: its end is a failure like others."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        limited()
        with os.fdopen(writing, "w") as pipe:
            json.dump(asdict(work()), pipe)
            pipe.flush()
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    status = os.waitpid(child, 0)[1]
    if status or not text:
        return Result(name, failures=[f"its process ended with status {os.waitstatus_to_exitcode(status)}\n"])
    return Result(**json.loads(text))


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--count", type=int, default=100_000, help="inputs for each parser")
    options.add_argument("--seed", type=int, default=1, help="other numbers make other inputs")
    options.add_argument("--only", default="", help="parsers whose names hold this")
    options.add_argument("--keep", type=Path, default=Path("fuzzed"), help="a folder for inputs that failed")
    given = options.parse_args()
    given.keep.mkdir(parents=True, exist_ok=True)
    print(HEADINGS, flush=True)
    failed: list[str] = []
    for parser in PARSERS:
        if given.only in parser.name:
            work = partial(try_inputs, parser, given.count, given.seed, given.keep)
            result = in_child(work, parser.name)
            print(result.row(), flush=True)
            failed += [f"{parser.name}: {failure}" for failure in result.failures]
    print("\n".join(failed[:MOST_FAILURES]), end="")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
