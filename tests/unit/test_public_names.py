"""What `import sidestep` offers: each name is there, wherever it is kept."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import sidestep

SOURCE = Path(sidestep.__file__)


@pytest.mark.parametrize("name", sidestep._MODULES)
def test_a_name_is_there(name: str) -> None:
    assert getattr(sidestep, name) is not None


def test_type_checkers_know_the_same_names() -> None:
    branches = [node for node in ast.parse(SOURCE.read_text()).body if isinstance(node, ast.If)]
    imports = [
        node
        for branch in branches
        for node in branch.body
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("sidestep.")
    ]
    assert {alias.name for node in imports for alias in node.names} == set(sidestep._MODULES)
    assert set(sidestep.__all__) == set(sidestep._MODULES) - sys.stdlib_module_names
    for node in imports:
        for alias in node.names:
            assert sidestep._MODULES[alias.name] == node.module


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'kretprobe_'"):
        sidestep.kretprobe_  # noqa: B018


def test_the_package_alone_imports_next_to_nothing() -> None:
    words = (
        "import sys; before = set(sys.modules); import sidestep.cli.entry; print(*set(sys.modules) - before)"
    )
    output = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True).stdout
    loaded = {name for name in output.split() if name.startswith("sidestep")}
    assert loaded == {"sidestep", "sidestep.cli", "sidestep.cli.entry"}
