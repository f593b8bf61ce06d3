"""Compares machine code, interpreter and plain Python over many generated handlers.

python -m differential.compare_handlers FIRST COUNT      (in tests/, with src/ on the path)
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from detours.player import compile_player
from differential.handler_runs import Mismatch, Tally, run_batch

BATCH = 30
RUNS = 25  # of each program


def main(first: int, count: int) -> None:
    total, wrong = Tally(), 0
    with tempfile.TemporaryDirectory() as folder:
        program = compile_player(Path(folder))
        for start in range(first, first + count, BATCH):
            try:
                total += run_batch(program, range(start, min(start + BATCH, first + count)), RUNS)
            except Mismatch as mismatch:
                wrong += 1
                print(mismatch)
            print(f"programs below {start + BATCH}: {total}", file=sys.stderr)
    print(f"{total}, {wrong} batches with differences")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
