"""The ELF files that a process has mapped: opened by the first of several ways that leads to the very file.

Paths in /proc/PID/maps are those of the target's mount namespace and may lie: the file was deleted, another
one or a FIFO stands there now, its name ends in " (deleted)" or holds a newline. So a file counts only if it
is the inode that is mapped, or holds the headers that are in memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from sidestep.address import PAGE, Range
from sidestep.errors import TargetError
from sidestep.maps import Mapping, overlapping
from sidestep.symbols.content import Reader, read_memory
from sidestep.symbols.elf import PF_X, ElfFile
from sidestep.symbols.separate import find_symbols

VDSO = "[vdso]"
HUGE_PAGES = "/anon_hugepage"
"""What the kernel calls anonymous memory in huge pages (MAP_HUGETLB)."""
_DELETED = " (deleted)"
_MOST_IMAGES = 64  # of one file


class MappedFile(NamedTuple):
    """A file behind mappings.

    path       in the target's mount namespace, without the mark of a deleted file
    opened_at  a path by which this process can open it; empty if `elf` reads the target's memory
    deleted    it is no longer at `path`
    note       what the user should know; mostly empty
    """

    elf: ElfFile
    path: str
    opened_at: str = ""
    deleted: bool = False
    note: str = ""


class Image(NamedTuple):
    """One place where a file is loaded."""

    file: MappedFile
    bias: int
    ranges: list[Range]


def find_images(pid: int, mappings: Sequence[Mapping], read: Reader) -> Iterator[Image]:
    """Every ELF image that is mapped, in the order of addresses. Nothing raises: what cannot be read is left
    out."""
    groups: dict[tuple[str, int, str], list[Mapping]] = {}
    copies = [mapping for mapping in mappings if _is_copied_code(mapping)]
    for mapping in mappings:
        if mapping.path == VDSO or (mapping.inode and not _is_copied_code(mapping)):
            groups.setdefault((mapping.device, mapping.inode, mapping.path), []).append(mapping)
    for group in groups.values():
        inside = overlapping(copies, group[0].end, group[-1].start)
        if inside or any("x" in mapping.perms for mapping in group):
            file = _find_file(pid, group, read)
            if file is not None:
                yield from _images(file, group, inside)


def _is_copied_code(mapping: Mapping) -> bool:
    """Executable memory that is no file, maybe in huge pages: a program may have copied its text there."""
    anonymous = not mapping.inode and (not mapping.path or mapping.path.startswith("[anon"))
    return "x" in mapping.perms and (anonymous or mapping.path.startswith(HUGE_PAGES))


def _images(file: MappedFile, group: Sequence[Mapping], copies: Sequence[Mapping]) -> Iterator[Image]:
    """The images of one file: it can be loaded more than once (dlmopen)."""
    shown = [_bias(file.elf, mapping) for mapping in group if copies or "x" in mapping.perms]
    biases = dict.fromkeys(bias for bias in shown if bias is not None)
    for bias in islice(biases, _MOST_IMAGES):
        ranges: list[Range] = []
        for load in file.elf.loads:
            start = bias + (load.address & -PAGE)
            end = bias + (load.address + load.memory_size + PAGE - 1 & -PAGE)
            ranges += [
                Range(max(mapping.start, start), min(mapping.end, end))
                for there in (group, copies if load.flags & PF_X else ())
                for mapping in overlapping(there, start, end)
            ]
            # The end of the data segment (BSS) is anonymous memory, but it belongs to the image.
            if load.memory_size > load.file_size:
                file_end = bias + (load.address + load.file_size + PAGE - 1 & -PAGE)
                if file_end < end:
                    ranges.append(Range(file_end, end))
        if ranges:
            yield Image(file, bias, sorted(set(ranges)))


def _bias(elf: ElfFile, mapping: Mapping) -> int | None:
    """The load bias that a mapping of the file shows, if it is one of code, or of the start of the file."""
    if mapping.path == VDSO or ("x" not in mapping.perms and mapping.offset == 0):
        return mapping.start - min(load.address - load.offset for load in elf.loads)
    for load in elf.loads:
        first = load.offset & -PAGE
        if (
            load.flags & PF_X
            and "x" in mapping.perms
            and first <= mapping.offset < load.offset + load.file_size
        ):
            return mapping.start - mapping.offset + load.offset - load.address
    return None


def _find_file(pid: int, group: Sequence[Mapping], read: Reader) -> MappedFile | None:
    """The file, else its image in memory; None where neither is one for x86-64."""
    first = group[0]
    if first.path == VDSO:
        data = read_memory(read, first.start, first.end - first.start)
        try:
            return MappedFile(ElfFile.from_bytes(data, VDSO), VDSO)
        except TargetError:
            return None
    code = next((mapping for mapping in group if "x" in mapping.perms), first)
    root, path = f"/proc/{pid}/root", first.path
    there = _open(path, root)
    if there is not None and _is_mapped(there, code, read):
        there.find_symbols = partial(find_symbols, path=path, root=root)
        return MappedFile(there, path, root + path)
    path, deleted = path.removesuffix(_DELETED), path.endswith(_DELETED)
    for candidate in (f"/proc/{pid}/map_files/{code.start:x}-{code.end:x}", f"/proc/{pid}/exe"):
        elf = _open(candidate)
        if elf is not None and (_is_mapped(elf, code, read) or _is_in_memory(elf, code, read)):
            elf.find_symbols = partial(find_symbols, path=path, root=root)
            return MappedFile(elf, path, candidate, deleted)
    header = next((mapping for mapping in group if mapping.offset == 0), None)
    if header is None:
        return None
    try:
        elf = ElfFile.from_memory(read, header.start, path)
    except TargetError:
        return None
    elf.find_symbols = partial(find_symbols, path=path, root=root)
    return MappedFile(elf, path, "", deleted, _why_from_memory(elf, _open(path, root)))


def _why_from_memory(elf: ElfFile, there: ElfFile | None) -> str:
    if there is None:
        return "its file cannot be opened: only what is in memory is known of it"
    return (
        f"the file at its path is another one (build-id {there.build_id} there, {elf.build_id} in memory): "
        "only what is in memory is known of it"
    )


def _open(path: str, root: str | None = None) -> ElfFile | None:
    try:
        return ElfFile.open(path, root)
    except TargetError:
        return None


def _is_mapped(elf: ElfFile, code: Mapping, read: Reader) -> bool:
    """Whether an opened file is the mapped one. Some file systems show another device in mappings: there its
    headers tell."""
    if elf.identity is None or elf.identity[1] != code.inode:
        return False
    device = elf.identity[0]
    return f"{os.major(device):02x}:{os.minor(device):02x}" == code.device or _is_in_memory(elf, code, read)


def _is_in_memory(elf: ElfFile, code: Mapping, read: Reader) -> bool:
    """Whether memory holds the headers of the file, and its build-id."""
    bias = _bias(elf, code)
    if bias is None:
        return False
    start = min(elf.loads, key=lambda load: load.offset)
    base = bias + start.address - start.offset
    if read_memory(read, base, len(elf.headers)) != elf.headers:
        return False
    try:
        return ElfFile.from_memory(read, base, elf.name).build_id == elf.build_id
    except TargetError:
        return False
