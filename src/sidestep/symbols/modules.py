"""What a process has loaded: the main program, shared objects, the vdso."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable, Sequence
from functools import cached_property

from sidestep import errors
from sidestep.address import PAGE, Range
from sidestep.errors import TargetError
from sidestep.maps import Mapping, read_maps
from sidestep.symbols.content import Reader, read_memory
from sidestep.symbols.elf import PF_X, ElfFile
from sidestep.symbols.functions import FunctionTable
from sidestep.symbols.link_map import entry_point, load_order
from sidestep.symbols.printable import clean

VDSO = "[vdso]"
_DELETED = " (deleted)"
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
    ) -> None:
        self.path, self.file, self.elf, self.bias = path, file, elf, bias
        self.name = clean(path if path.startswith("[") else path.rpartition("/")[2])
        self.ranges = list(ranges)
        self.is_main, self.deleted = is_main, deleted

    def __repr__(self) -> str:
        return f"<Module {self.name} at {self.base:#x}>"

    @property
    def base(self) -> int:
        """The lowest address that it is mapped at."""
        return min((mapped.start for mapped in self.ranges), default=self.bias)

    @cached_property
    def text(self) -> list[Range]:
        """The run-time addresses of its executable code."""
        return [Range(code.start + self.bias, code.end + self.bias) for code in self.elf.text]

    @cached_property
    def functions(self) -> FunctionTable:
        return FunctionTable(self.elf)

    def __contains__(self, address: object) -> bool:
        return any(address in mapped for mapped in self.ranges)

    def matches(self, glob: str, looseness: int = 3) -> bool:
        """Whether a glob stands for it. A glob with a slash is matched with the whole path, another one with

        0  the file name: `libz.so.1.2.13`, `libc-2.31.so`
        1  that without `.so` and what follows: `libz`, `libc-2.31`
        2  that without a version: `libc`
        3  the name that the file gives itself (SONAME), and the short forms of it: `libz.so.1`

        and `looseness` is the last of these that counts.
        """
        if "/" in glob:
            return fnmatch.fnmatchcase(clean(self.path), glob)
        forms = _short_forms(self.name)[: looseness + 1]
        if looseness >= 3 and self.elf.soname:
            forms += _short_forms(self.elf.soname)
        return any(form == glob or fnmatch.fnmatchcase(form, glob) for form in forms)


def _short_forms(name: str) -> tuple[str, ...]:
    before = re.split(r"\.so(?:\.|$)", name, maxsplit=1)[0].strip("[]") or name
    return name, before, re.split(r"\.|-\d", before, maxsplit=1)[0] or before


def read_modules(pid: int, read: Reader, known: Iterable[Module] = ()) -> list[Module]:
    """The modules of a process: the main program first, the others in load order, then what no loader lists.

    `read` reads the target's memory. Modules of an earlier call are kept as the same objects where nothing
    about
    them has changed. Raises TargetError when the process is gone or may not be looked at.
    """
    modules = list(_from_mappings(pid, read_maps(pid), read, known))
    entry = entry_point(pid)
    started = next((module for module in modules if entry is not None and entry in module), None)
    positions: dict[Module, int] = {}
    for position, dynamic in enumerate(load_order(started, modules, read)):
        module = next((module for module in modules if dynamic in module), None)
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
    ranges = [Range(load.address, load.address + load.memory_size) for load in elf.loads]
    return Module(os.path.abspath(path), path, elf, 0, ranges, is_main=True)


def _from_mappings(
    pid: int, mappings: Sequence[Mapping], read: Reader, known: Iterable[Module]
) -> Iterable[Module]:
    earlier = {(module.path, module.bias, module.base): module for module in known}
    files: dict[tuple[str, int, str], list[Mapping]] = {}
    for mapping in mappings:
        if mapping.inode or mapping.path == VDSO:
            files.setdefault((mapping.device, mapping.inode, mapping.path), []).append(mapping)
    count = 0
    for group in files.values():
        if not any("x" in mapping.perms for mapping in group):
            continue
        for elf, file, bias, ranges in _images(pid, group, read):
            count += 1
            if count > _MOST_MODULES:
                return
            path = group[0].path
            deleted = path.endswith(_DELETED)
            path = path.removesuffix(_DELETED)
            same = earlier.get((path, bias, min(ranges).start))
            if same is not None and same.elf.identity == elf.identity and same.elf.build_id == elf.build_id:
                same.ranges = ranges
                yield same
            else:
                yield Module(path, file, elf, bias, ranges, deleted=deleted)


def _images(
    pid: int, group: Sequence[Mapping], read: Reader
) -> Iterable[tuple[ElfFile, str, int, list[Range]]]:
    """The images of one file: it can be loaded more than once (dlmopen)."""
    opened = _open(pid, group, read)
    if opened is None:
        return
    elf, file = opened
    biases: dict[int, list[Range]] = {}
    for mapping in group:
        if "x" in mapping.perms:
            bias = _bias(elf, mapping)
            if bias is not None:
                biases.setdefault(bias, [])
    for bias, ranges in biases.items():
        for load in elf.loads:
            start = bias + (load.address & -PAGE)
            end = bias + (load.address + load.memory_size + PAGE - 1 & -PAGE)
            ranges += [
                Range(max(mapping.start, start), min(mapping.end, end))
                for mapping in group
                if mapping.start < end and start < mapping.end
            ]
            # The end of the data segment (BSS) is anonymous memory, but it belongs to the image.
            if load.memory_size > load.file_size:
                file_end = bias + (load.address + load.file_size + PAGE - 1 & -PAGE)
                if file_end < end:
                    ranges.append(Range(file_end, end))
        if ranges:
            yield elf, file, bias, sorted(set(ranges))


def _bias(elf: ElfFile, mapping: Mapping) -> int | None:
    """The load bias that an executable mapping of the file shows."""
    if mapping.path == VDSO:
        return mapping.start - min(load.address - load.offset for load in elf.loads)
    for load in elf.loads:
        first = load.offset & -PAGE
        if load.flags & PF_X and first <= mapping.offset < load.offset + load.file_size:
            return mapping.start - mapping.offset + load.offset - load.address
    return None


def _open(pid: int, group: Sequence[Mapping], read: Reader) -> tuple[ElfFile, str] | None:
    """The file behind mappings, by the first of several ways that leads to the very same file."""
    first = group[0]
    if first.path == VDSO:
        data = read_memory(read, first.start, first.end - first.start)
        try:
            return ElfFile.from_bytes(data, VDSO), ""
        except TargetError:
            return None
    code = next(mapping for mapping in group if "x" in mapping.perms)
    candidates = [f"/proc/{pid}/map_files/{code.start:x}-{code.end:x}", f"/proc/{pid}/exe"]
    if not first.path.endswith(_DELETED):
        candidates.insert(0, f"/proc/{pid}/root{first.path}")
    for candidate in candidates:
        try:
            elf = ElfFile.open(candidate)
        except TargetError as error:
            if error.reason is errors.NOT_64_BIT:
                return None
            continue
        if _is_file_of(elf, code, read, exact=candidate.startswith(f"/proc/{pid}/map_files/")):
            return elf, candidate
    header = next((mapping for mapping in group if mapping.offset == 0), None)
    if header is None:
        return None
    try:
        return ElfFile.from_memory(read, header.start, first.path), ""
    except TargetError:
        return None


def _is_file_of(elf: ElfFile, code: Mapping, read: Reader, *, exact: bool) -> bool:
    """Whether an opened file is the mapped one: the same inode, or (devices are renamed by some file systems)
    the
    same headers and build-id in memory."""
    if exact:
        return True
    if elf.identity is None or elf.identity[1] != code.inode:
        return False
    device = elf.identity[0]
    if f"{os.major(device):02x}:{os.minor(device):02x}" == code.device:
        return True
    bias = _bias(elf, code)
    if bias is None:
        return False
    start = min(elf.loads, key=lambda load: load.offset)
    return read_memory(read, bias + start.address - start.offset, len(elf.headers)) == elf.headers
