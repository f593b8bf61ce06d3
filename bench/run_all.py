"""Runs all measurements and prints one table. `--write` puts it into bench/README.md, between its markers."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from figures import Row, table
from victims import CPUS, HERE, end_orderly

SUBJECTS = ("hit", "handlers", "batch", "scale", "start", "footprint", "reader")
README = HERE / "README.md"
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"
BUSY = 0.3  # load average above which the figures are doubtful


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "subjects", nargs="*", choices=(*SUBJECTS, []), metavar="SUBJECT", help="default: all"
    )
    parser.add_argument("--repetitions", type=int, help="fresh victims for each figure")
    parser.add_argument("--quick", action="store_true", help="short and inexact, to see that it works")
    parser.add_argument("--write", action="store_true", help="put the table into bench/README.md")
    options = parser.parse_args()
    if options.write and options.subjects:
        parser.error("--write replaces the whole table: it goes with all subjects")
    end_orderly()
    words = ["--json", *(["--quick"] if options.quick else [])]
    if options.repetitions:
        words += ["--repetitions", str(options.repetitions)]
    about = surroundings(options.quick)
    rows: list[Row] = []
    failed: list[str] = []
    try:
        for subject in options.subjects or SUBJECTS:
            if run(subject, words, rows):
                failed.append(subject)
    finally:
        text = f"{about}\n\n{table(rows)}"
        print(text, end="", flush=True)
    if failed:
        sys.exit(f"failed, its table is not complete: {', '.join(failed)}")
    if options.write:
        write(text)


def run(subject: str, words: Sequence[str], rows: list[Row]) -> int:
    """Adds the rows of a subject, which has a process of its own; its exit status."""
    environment = dict(os.environ)
    path = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = str(HERE.parent / "src") + (f":{path}" if path else "")
    command = [sys.executable, str(HERE / f"{subject}.py"), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                rows.append(Row(**json.loads(line)))
                print(f"{rows[-1].what}: {rows[-1].median:.4g} {rows[-1].unit}", file=sys.stderr)
        except BaseException:
            process.terminate()
            raise
    return process.returncode


def surroundings(quick: bool) -> str:
    """Where and when: one line."""
    found = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    revision = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=HERE, capture_output=True, text=True, check=False
    ).stdout.strip()
    load = os.getloadavg()[0]
    parts = [
        datetime.now(UTC).strftime("%Y-%m-%d"),
        f"revision {revision or 'unknown'}",
        f"{len(CPUS)} CPUs, {found[1] if found else 'unknown'}, family/model/stepping {family()}",
        f"Linux {platform.release()}",
        f"Python {platform.python_version()}, typer {version('typer')}",
        f"load {load:.1f} at the start" + (": busy, so these figures are too high" if load > BUSY else ""),
    ]
    return ("Quick and inexact. " if quick else "") + "; ".join(parts) + "."


def family() -> str:
    text = Path("/proc/cpuinfo").read_text()
    found = [re.search(rf"^{name}\s*:\s*(\d+)$", text, re.M) for name in ("cpu family", "model", "stepping")]
    return "/".join(match[1] if match else "?" for match in found)


def write(text: str) -> None:
    old = README.read_text()
    if BEGIN not in old or END not in old:
        sys.exit(f"{README} has no lines {BEGIN} and {END}")
    before, rest = old.split(BEGIN, 1)
    README.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{rest.split(END, 1)[1]}")


if __name__ == "__main__":
    main()
