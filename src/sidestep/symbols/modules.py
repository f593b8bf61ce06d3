"""What a process has loaded: the main program, shared objects, the vdso."""

from __future__ import annotations

import fnmatch
import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cached_property, partial
from itertools import islice

from sidestep.address import Range
from sidestep.maps import Mapping, read_maps
from sidestep.symbols.content import Reader
from sidestep.symbols.elf import ElfFile
from sidestep.symbols.functions import FunctionTable
from sidestep.symbols.link_map import entry_point, executed_path, load_order
from sidestep.symbols.mapped import VDSO, find_images
from sidestep.symbols.printable import clean
from sidestep.symbols.separate import find_symbols

_MOST_MODULES = 1 << 13


class Module:
    """One loaded ELF image.

    name     the file's name, fit to be printed (`libc.so.6`, `[vdso]`)
    path     as the kernel shows it, in the target's mount namespace
    file     a path by which this process can open it; empty if it cannot (then `elf` reads the
             target's memory)
    bias     run-time address minus the file's own address
    ranges   where it is mapped
    deleted  the file is no longer at `path`
    note     what the user should know about where it was read from; mostly empty
    functions  those of the file, wherever it is mapped
    started_as  the file name by which the program was executed: that of a symbolic link, maybe
    """

    def __init__(
        self,
        path: str,
        file: str,
        elf: ElfFile,
        bias: int = 0,
        ranges: Sequence[Range] = (),
        *,
        is_main: bool = False,
        deleted: bool = False,
        note: str = "",
        functions: FunctionTable | None = None,
    ) -> None:
        self.path, self.file, self.elf, self.bias = path, file, elf, bias
        self.functions = functions or FunctionTable(elf)
        self.name = clean(path if path.startswith("[") else path.rpartition("/")[2])
        self.ranges = list(ranges)
        self.is_main, self.deleted, self.note = is_main, deleted, note
        self.started_as = ""

    def __repr__(self) -> str:
        return f"<Module {self.name} at {self.base:#x}>"

    @property
    def base(self) -> int:
        """The lowest address that it is mapped at."""
        return min((mapped.start for mapped in self.ranges), default=self.bias)

    @property
    def is_whole(self) -> bool:
        """Not a mere piece of a file that is mapped once more: V8 does that with its own code."""
        return self.bias + min((load.address for load in self.elf.loads), default=0) in self

    @cached_property
    def text(self) -> list[Range]:
        """The run-time addresses of its executable code."""
        return [Range(code.start + self.bias, code.end + self.bias) for code in self.elf.text]

    def __contains__(self, address: object) -> bool:
        return any(address in mapped for mapped in self.ranges)

    def matches(self, glob: str, looseness: int = 3) -> bool:
        """Whether a glob stands for it. One with a slash is matched with the whole path, or leads to the file
        where the target runs (`/lib/...` for `/usr/lib/...`). Another one is matched with

        0  the file name: `libz.so.1.2.13`, `libc-2.31.so`
        1  that without `.so` and what follows: `libz`, `libc-2.31`
        2  that without a version: `libc`
        3  the name that the file gives itself (SONAME), or that it was started by, and their short forms

        and `looseness` is the last of these that counts.
        """
        if "/" in glob:
            return fnmatch.fnmatchcase(clean(self.path), glob) or self._is_at(glob)
        forms = _short_forms(self.name)[: looseness + 1]
        if looseness >= 3:
            for name in (self.elf.soname, self.started_as):
                forms += _short_forms(name) if name else ()
        return any(form == glob or fnmatch.fnmatchcase(form, glob) for form in forms)

    def _is_at(self, path: str) -> bool:
        """Whether a path, as the target sees it, leads to the file."""
        root = self.file.removesuffix(self.path)
        try:
            return self.file.endswith(self.path) and os.path.samefile(root + path, self.file)
        except (OSError, ValueError):
            return False


def _short_forms(name: str) -> tuple[str, ...]:
    before = re.split(r"\.so(?:\.|$)", name, maxsplit=1)[0].strip("[]") or name
    return name, before, re.split(r"\.|-\d", before, maxsplit=1)[0] or before


class AddressIndex:
    """Which module an address lies in."""

    def __init__(self, modules: Sequence[Module]) -> None:
        self._modules = list(modules)
        self._ranges = sorted((*mapped, at) for at, module in enumerate(modules) for mapped in module.ranges)
        self._starts = [start for start, _, _ in self._ranges]

    def module(self, address: int) -> Module | None:
        """The one whose mappings hold the address."""
        at = bisect_right(self._starts, address) - 1
        if at < 0 or address >= self._ranges[at][1]:
            return None
        return self._modules[self._ranges[at][2]]


def read_modules(pid: int, read: Reader, known: Iterable[Module] = ()) -> list[Module]:
    """The modules of a process: the main program first, the others in load order, then what no loader lists.

    `read` reads the target's memory. Modules of an earlier call are kept as the same objects where nothing
    about
    them has changed. Raises TargetError when the process is gone or may not be looked at.
    """
    modules = list(_from_mappings(pid, read_maps(pid), read, known))
    entry = entry_point(pid)
    index = AddressIndex(modules)
    started = None if entry is None else index.module(entry)
    if started is not None:
        started.started_as = clean(executed_path(pid, read).rpartition("/")[2])
    positions: dict[Module, int] = {}
    for position, dynamic in enumerate(load_order(started, modules, read)):
        module = index.module(dynamic)
        if module is not None:
            positions.setdefault(module, position)
    main = min(positions, key=positions.__getitem__, default=started)
    # Nobody means the vdso's `time` before the C library's.
    modules.sort(
        key=lambda module: (
            module is not main,
            module.name == VDSO,
            positions.get(module, 1 << 20),
            module.base,
        )
    )
    for module in modules:
        module.is_main = module is main
    return modules


def offline_module(path: str) -> Module:
    """A file that is not loaded; addresses are its own. Raises TargetError as `ElfFile.open` does."""
    elf = ElfFile.open(path)
    elf.find_symbols = partial(find_symbols, path=os.path.abspath(path), root=None)
    ranges = [Range(load.address, load.address + load.memory_size) for load in elf.loads]
    return Module(os.path.abspath(path), path, elf, 0, ranges, is_main=True)


def _from_mappings(
    pid: int, mappings: Sequence[Mapping], read: Reader, known: Iterable[Module]
) -> Iterable[Module]:
    earlier = {(module.path, module.bias, module.base): module for module in known}
    functions: dict[ElfFile, FunctionTable] = {}  # of each file, shared by its images
    for image in islice(find_images(pid, mappings, read), _MOST_MODULES):
        file, elf = image.file, image.file.elf
        same = earlier.get((file.path, image.bias, min(image.ranges).start))
        if same is not None and same.elf.identity == elf.identity and same.elf.build_id == elf.build_id:
            same.ranges = image.ranges
            module = same
        else:
            module = Module(
                file.path,
                file.opened_at,
                elf,
                image.bias,
                image.ranges,
                deleted=file.deleted,
                note=file.note,
                functions=functions.get(elf),
            )
        functions[elf] = module.functions
        yield module
