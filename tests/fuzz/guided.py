"""Inputs guided by coverage: what leads to new places in the code is mutated further (atheris, libFuzzer).

    pip install -e .[fuzz]
    PYTHONPATH=src:tests python -m fuzz.guided "symbol tables" --count 100000

One parser a process; without a name all of them, one after the other. Prints the rows of `fuzz.run`.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["sidestep"]):
    from fuzz.parsers import PARSERS, Parser
from fuzz.run import HEADINGS, MOST_FAILURES, Result, limited, try_one

BEYOND = 4096  # bytes that an input may be longer than the seeds


def fuzz(parser: Parser, count: int, keep: Path) -> None:
    """Does not return: libFuzzer ends the process."""
    with tempfile.TemporaryDirectory() as folder:
        seeds = parser.seeds(Path(folder))
    corpus = Path(tempfile.mkdtemp())
    for index, seed in enumerate(seeds):
        (corpus / f"seed{index}").write_bytes(seed.data)
    result = Result(parser.name)
    limited()
    began = time.perf_counter()

    def one(data: bytes) -> None:
        try_one(parser, data, result, keep)
        if result.inputs >= count or len(result.failures) >= MOST_FAILURES:
            result.seconds = time.perf_counter() - began
            result.memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
            print(result.row(), *result.failures, sep="\n", flush=True)
            os._exit(bool(result.failures))

    longest = max(len(seed.data) for seed in seeds) + BEYOND
    words = [sys.argv[0], str(corpus), f"-max_len={longest}", "-rss_limit_mb=0", "-timeout=0", "-verbosity=0"]
    atheris.Setup(words, one)
    atheris.Fuzz()


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("parser", nargs="?", help="the name of one parser")
    options.add_argument("--count", type=int, default=100_000, help="inputs for each parser")
    options.add_argument("--keep", type=Path, default=Path("fuzzed"), help="a folder for inputs that failed")
    given = options.parse_args()
    given.keep.mkdir(parents=True, exist_ok=True)
    if given.parser is not None:
        fuzz(next(parser for parser in PARSERS if parser.name == given.parser), given.count, given.keep)
    print(HEADINGS, flush=True)
    status = 0
    for parser in PARSERS:
        words = [sys.executable, "-m", "fuzz.guided", parser.name, f"--count={given.count}"]
        status |= subprocess.run([*words, f"--keep={given.keep}"], check=False).returncode
    return status


if __name__ == "__main__":
    sys.exit(main())
