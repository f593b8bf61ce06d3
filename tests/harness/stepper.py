"""Counts by single steps how often control arrives at each instruction of a running program."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PTRACE_PEEKUSER, PTRACE_SINGLESTEP, PTRACE_DETACH = 3, 9, 17
PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207
RIP = 16 * 8  # offset in struct user
LINE = re.compile(r"^\s*([0-9a-f]+):\t(.*)$", re.M)
STRING_PREFIX = re.compile(r"^(rep|repz|repnz|repe|repne) ")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of objdump: a place in the ELF file, the function it belongs to, the text."""

    address: int
    function: str
    offset: int
    text: str

    @property
    def repeats(self) -> bool:
        """Control stays at the instruction for many steps, which are one arrival."""
        return STRING_PREFIX.match(self.text) is not None


def disassemble(program: Path, functions: set[str]) -> list[Instruction]:
    """The instructions of functions, by their C++ names with or without parameters; no padding."""
    found = []
    for line in _output("nm", "-C", "-S", str(program)):
        start, size, _, name = [*line.split(" ", 3), "", "", ""][:4]
        if name not in functions and name.partition("(")[0] not in functions:
            continue
        bounds = (f"--start-address=0x{start}", f"--stop-address={int(start, 16) + int(size, 16):#x}")
        text = "\n".join(_output("objdump", "-d", "-w", "--no-show-raw-insn", *bounds, str(program)))
        short = name if name in functions else name.partition("(")[0]
        for address, instruction in LINE.findall(text):
            place = int(address, 16)
            found.append(Instruction(place, short, place - int(start, 16), instruction.strip()))
    return found


def _output(*words: str) -> list[str]:
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()


def base_address(pid: int, program: Path) -> int:
    """Where an ELF file's address 0 is in the process; 0 for programs at fixed addresses."""
    with program.open("rb") as file:
        if file.read(18)[16] == 2:  # ET_EXEC
            return 0
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if line.endswith(str(program)):
            return int(line.partition("-")[0], 16)
    raise AssertionError(f"{program} is not mapped in {pid}")


def count_arrivals(
    pid: int, program: Path, instructions: list[Instruction], release: Callable[[], object]
) -> Counter[int]:
    """Steps a process of one thread to its end; arrivals by ELF address.

    `release` is called once the process is stopped: it writes what the process waits for.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    ptrace = libc.ptrace
    ptrace.restype, ptrace.argtypes = (
        ctypes.c_long,
        [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p],
    )
    base = base_address(pid, program)
    wanted = {instruction.address + base: instruction for instruction in instructions}
    arrivals: Counter[int] = Counter()
    assert ptrace(PTRACE_SEIZE, pid, None, None) == 0, os.strerror(ctypes.get_errno())
    assert ptrace(PTRACE_INTERRUPT, pid, None, None) == 0
    last, released = 0, False
    while True:
        _, status = os.waitpid(pid, 0)
        if not os.WIFSTOPPED(status):
            return arrivals
        if not released:
            release()
            released = True
        number = os.WSTOPSIG(status)
        if number == signal.SIGTRAP:
            deliver = 0
            ip = ptrace(PTRACE_PEEKUSER, pid, RIP, None) & 0xFFFFFFFFFFFFFFFF
            instruction = wanted.get(ip)
            if instruction is not None and not (ip == last and instruction.repeats):
                arrivals[instruction.address] += 1
            last = ip
        else:
            deliver = number
        if ptrace(PTRACE_SINGLESTEP, pid, None, deliver) != 0:
            return arrivals
