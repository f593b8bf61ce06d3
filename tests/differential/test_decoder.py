"""Lengths and branch targets of the decoder against objdump, on the whole of libc."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from differential.harvest import executable_parts, libraries
from sidestep.arch.x86_64 import insn

_LINE = re.compile(r"^ *([0-9a-f]+):\t((?:[0-9a-f]{2} )+) *\t(\S+)(?: +([0-9a-f]+)(?: <|$))?")
# objdump shows these prefixes as instructions of their own where it finds no use for them.
_PREFIXES = frozenset(
    ("cs", "ds", "es", "ss", "fs", "gs", "data16", "addr32", "lock", "repz", "repnz", "rep", "bnd")
)


def objdump(path: Path) -> Iterator[tuple[int, int, str, int | None]]:
    """(address, length, mnemonic, branch target) of each instruction."""
    words = ["objdump", "-d", "-w", "--section=.text", str(path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            found = _LINE.match(line)
            if found:
                target = int(found[4], 16) if found[4] else None
                yield int(found[1], 16), len(found[2]) // 3, found[3], target
    assert process.returncode == 0


def test_lengths_and_branch_targets_in_libc() -> None:
    path = next(path for path in libraries() if path.name.startswith("libc.so"))
    texts = executable_parts(path)
    compared = branches = 0
    wrong = []
    instructions: dict[int, insn.Instruction] = {}
    for address, length, mnemonic, target in objdump(path):
        if mnemonic == "(bad)" or (mnemonic in _PREFIXES and length == 1):
            continue
        if address not in instructions:  # at the start, and behind what is no instruction
            text = next(text for text in texts if text.address <= address < text.address + len(text.code))
            code = text.code[address - text.address :][: 1 << 14]
            instructions = {each.ip: each for each in insn.decode(code, address)}
        instruction = instructions.get(address)
        if instruction is None or instruction.len != length:
            wrong.append(f"{address:#x}: objdump {mnemonic}, {length} bytes; here {instruction}")
            continue
        compared += 1
        if target is not None and (mnemonic.startswith(("j", "call", "loop", "xbegin"))):
            branches += 1
            if insn.direct_branch_target(instruction) != target:
                wrong.append(f"{address:#x}: objdump {mnemonic} {target:#x}; here {instruction}")
    print(f"{compared} instructions, {branches} branches")
    assert not wrong, f"{len(wrong)} differ: {wrong[:10]}"
    assert compared > 100_000
    assert branches > 10_000
