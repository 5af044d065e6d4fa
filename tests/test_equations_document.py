"""docs/equations.md: every function and every test it names exists."""

from __future__ import annotations

import ast
import functools
import importlib.util
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent
ROWS = [
    line
    for line in (ROOT / "docs" / "equations.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| in the paper")
]


def pointers(row: str) -> tuple[str, str]:
    cells = re.split(r"(?<!\\)\|", row)
    assert len(cells) == 5, f"a row has three cells: {row}"
    function, test = (cell.strip().strip("`") for cell in cells[2:4])
    return function, test


@functools.cache
def names_in(path: pathlib.Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def test_there_are_rows() -> None:
    assert len(ROWS) > 30


@pytest.mark.parametrize("row", ROWS)
def test_pointers_resolve(row: str) -> None:
    function, test = pointers(row)
    # The longest module of that name: a package may hold a function and a module of one name.
    parts = function.split(".")
    modules = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    module = next(module for module in modules if is_module(module))
    found: object = importlib.import_module(module)
    for name in parts[module.count(".") + 1 :]:
        found = getattr(found, name)
    path, name = test.split("::")
    assert name in names_in(ROOT / path)
