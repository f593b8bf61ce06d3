"""The program that `sidestep demo` looks into. It knows nothing of Sidestep.

It says that it is ready, then it reads files, sorts their words and makes lists, round after round, until its
standard input is closed (or a minute is over). Then it says how many rounds there were, and whether every one
gave the same result.
"""

import os
import select
import sys
import time

CANDIDATES = ("/etc/hosts", "/etc/passwd", "/proc/self/stat", __file__)
FILES = [path for path in CANDIDATES if os.access(path, os.R_OK)]
LONGEST = 60.0


def work() -> int:
    """One round; the same number each time, unless somebody changes a file."""
    words: list[str] = []
    for path in FILES:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
        if not path.startswith("/proc"):
            words += text.split()
    squares = [[number * number for number in range(size)] for size in range(16)]
    return hash(tuple(sorted(words))) ^ sum(map(sum, squares))


def main() -> None:
    print("ready", flush=True)
    end = time.monotonic() + LONGEST
    first = work()
    rounds = 1
    right = True
    while time.monotonic() < end and not select.select([sys.stdin], [], [], 0.003)[0]:
        right = work() == first and right
        rounds += 1
    print(rounds, "right" if right else "wrong", flush=True)


if __name__ == "__main__":
    main()
