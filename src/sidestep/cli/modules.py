"""The modules that a name is looked up in: those of a process, or a file that nobody runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sidestep.cli.options import UsageError

if TYPE_CHECKING:
    from sidestep.symbols.content import Reader
    from sidestep.symbols.modules import Module


@dataclass(frozen=True, slots=True)
class Loaded:
    """Modules, and how memory behind them is read. `pid` is None for a file."""

    modules: list[Module]
    read: Reader
    pid: int | None


def choose_modules(pid: int | None, name: str | None, file: Path | None) -> Loaded:
    """Exactly one of the three says where to look. The process is only read, not attached to."""
    if sum(given is not None for given in (pid, name, file)) != 1:
        raise UsageError("give one of -p PID, -n NAME and -f ELF")
    if file is not None:
        return open_file(file)
    from sidestep.target.process import procfs

    return read_process(pid if pid is not None else procfs.find(name or ""))


def open_file(file: Path) -> Loaded:
    from sidestep.symbols.modules import offline_module

    return Loaded([offline_module(str(file))], _no_memory, None)


def read_process(pid: int) -> Loaded:
    from sidestep.symbols.modules import read_modules
    from sidestep.target.process import procfs
    from sidestep.target.process.memory import ProcessMemory

    procfs.read_status(pid)
    read = ProcessMemory(pid).read
    return Loaded(read_modules(pid, read), read, pid)


def _no_memory(address: int, size: int) -> bytes:
    """A file has no run-time memory."""
    return b""
