"""Assembles snippets of AT&T assembly for the addresses where they will run, with the system's assembler.

Symbols that snippets can use: `data` (in the middle of the data), `slot` (64-bit aligned, in the data),
`outside` (code that is int3), and the snippet's own numeric labels.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from differential.execution import Layout

DISTANCE = 0x80  # between the starts of two snippets
FIRST = 0x4000  # of the first one, from the start of the code area


def outside(layout: Layout) -> int:
    """An address in the original code's area that holds int3."""
    return layout.original + 0x1230


def slot(layout: Layout) -> int:
    return layout.data + 0x40


def assemble(folder: Path, layout: Layout, snippets: Sequence[str]) -> list[tuple[int, bytes]]:
    """The address and the bytes of each snippet. CalledProcessError: a tool failed; it has printed why."""
    lines = [".text", f".skip {FIRST}, 0xcc"]
    for index, snippet in enumerate(snippets):
        lines += [f".balign {DISTANCE}, 0xcc", f"start{index}:", snippet, f"end{index}:"]
    source, thing, linked, flat = (folder / name for name in ("a.s", "a.o", "a.elf", "a.bin"))
    source.write_text("\n".join(lines) + "\n")
    symbols = {"data": layout.data, "slot": slot(layout), "outside": outside(layout)}
    for words in (
        ["as", "-o", thing, source],
        ["ld", "-o", linked, f"-Ttext={layout.original:#x}", "-e", "0", thing]
        + [f"--defsym={name}={value:#x}" for name, value in symbols.items()],
        ["objcopy", "-O", "binary", "-j", ".text", linked, flat],
    ):
        subprocess.run(words, check=True, timeout=30)
    listing = subprocess.run(["nm", linked], check=True, capture_output=True, text=True, timeout=30).stdout
    places = {
        name: int(value, 16) for value, name in re.findall(r"^(\w+) \w ((?:start|end)\d+)$", listing, re.M)
    }
    image = flat.read_bytes()
    found = []
    for index in range(len(snippets)):
        start, end = places[f"start{index}"], places[f"end{index}"]
        assert end - start <= DISTANCE, snippets[index]
        found.append((start, image[start - layout.original : end - layout.original]))
    return found
