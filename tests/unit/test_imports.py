"""Which part of the package may import which: docs/architecture.md draws it, this file enforces it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "sidestep"
PACKAGE = "sidestep"

# A module belongs to the part with the longest matching name. Each part may import itself and what is listed.
SMALL = frozenset({"errors", "address", "maps", "uninterrupted", "collector", "private_files"})
TEXT = SMALL | {"spec", "probes"}
# What emitted code and the readers of what it writes both derive from.
SHARED = frozenset({"events.layout", "events.record"})
MIDDLE = TEXT | SHARED | {"arch", "safety", "target.base"}
PARTS: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "address": frozenset(),
    "collector": frozenset(),
    "uninterrupted": frozenset(),
    "private_files": frozenset(),
    "maps": SMALL,
    "spec": SMALL,
    "probes": SMALL | {"spec"},
    "events.layout": SMALL,
    "events.record": TEXT | {"events.layout"},
    "arch": TEXT | SHARED,
    "safety": TEXT | SHARED | {"arch"},
    "target.base": SMALL | {"arch", "events.layout"},
    "target": SMALL | SHARED | {"arch", "spec", "target.base"},
    "handlers": SMALL | SHARED | {"compiler"},
    "agent": SMALL | SHARED | {"arch", "compiler"},
    "symbols": SMALL | {"spec"},
    "compiler": TEXT | SHARED | {"arch"},
    "events": MIDDLE,
    "kprobes": MIDDLE | {"symbols", "events", "compiler", "handlers", "agent"},
    "ending": frozenset({"errors"}),
    "session": MIDDLE
    | {"ending"}
    | {"symbols", "events", "compiler", "handlers", "agent", "kprobes", "target"},
    "opening": frozenset({"errors", "session", "target"}),
    "sessions": TEXT | SHARED | {"kprobes", "target"},
    # The package itself: its public names.
    "": MIDDLE
    | {"symbols", "events", "opening", "session", "sessions", "kprobes", "target", "compiler", "handlers"},
    "cli": MIDDLE | {"symbols", "events", "session", "sessions", "kprobes", "target", ""},
    "__main__": frozenset({"cli"}),
}

# Libraries that are used through one file each.
BEHIND_ONE_FILE = {
    "iced_x86": "arch/x86_64/insn.py",
    "llvmlite": "compiler/llvm.py",
    "pyarrow": "handlers/arrow.py",
    "drgn": "symbols/dwarf.py",
}


class Import(NamedTuple):
    """One imported module, or name of a module, and where it is written."""

    file: Path
    line: int
    module: str

    def __str__(self) -> str:
        return f"{self.file.relative_to(SOURCE.parent)}:{self.line}: imports {self.module}"


def imports_of(path: Path) -> Iterator[Import]:
    """Every module that a file names in an import, at any depth, with the names that may be modules."""
    package = module_name(path) if path.name == "__init__.py" else module_name(path).rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(path, node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *([base] if base else [])])
            for alias in node.names:
                name = f"{base}.{alias.name}"
                yield Import(path, node.lineno, name if is_module(name) else base)


def module_name(path: Path) -> str:
    words = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(words[:-1] if words[-1] == "__init__" else words)


def is_module(name: str) -> bool:
    path = SOURCE.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or path.is_dir()


def part_of(module: str) -> str:
    """The part that `sidestep.x.y` belongs to."""
    inside = module.removeprefix(PACKAGE).removeprefix(".")
    fitting = [part for part in PARTS if inside == part or (part and inside.startswith(f"{part}."))]
    assert fitting, f"{module} is in no part that this test knows"
    return max(fitting, key=len)


def forbidden(found: Import) -> bool:
    if found.module.split(".")[0] != PACKAGE:
        return False
    importer, imported = part_of(module_name(found.file)), part_of(found.module)
    return imported != importer and imported not in PARTS[importer]


def source_files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", source_files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_downwards(path: Path) -> None:
    wrong = [str(found) for found in imports_of(path) if forbidden(found)]
    assert not wrong, "\n".join(["against the direction of imports:", *wrong])


@pytest.mark.parametrize(("library", "owner"), BEHIND_ONE_FILE.items())
def test_a_library_is_behind_one_file(library: str, owner: str) -> None:
    users = {
        str(path.relative_to(SOURCE))
        for path in source_files()
        for found in imports_of(path)
        if found.module.split(".")[0] == library
    }
    assert users <= {owner}


def test_no_part_depends_on_itself_through_others() -> None:
    """The table above has no circles."""
    done: set[str] = set()

    def visit(part: str, path: tuple[str, ...]) -> None:
        assert part not in path, f"a circle: {' -> '.join([*path, part])}"
        if part not in done:
            for below in PARTS[part] - {part}:
                visit(below, (*path, part))
            done.add(part)

    for part in PARTS:
        visit(part, ())


@pytest.mark.parametrize(
    ("importer", "imported", "allowed"),
    [
        ("sidestep.cli.count", "sidestep.session", True),
        ("sidestep.arch.x86_64.detour", "sidestep.events.layout", True),
        ("sidestep.arch.x86_64.detour", "sidestep.events.reader", False),
        ("sidestep.kprobes.registry", "sidestep.target.base", True),
        ("sidestep.kprobes.registry", "sidestep.target.process.stop", False),
        ("sidestep.symbols.elf", "sidestep.kprobes", False),
        ("sidestep.errors", "sidestep.address", False),
    ],
)
def test_the_rules_themselves(importer: str, imported: str, allowed: bool) -> None:
    path = SOURCE.parent.joinpath(*importer.split(".")).with_suffix(".py")
    assert forbidden(Import(path, 1, imported)) is not allowed
