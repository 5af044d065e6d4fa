"""docs/equations.md: every function and every test it names exists."""

from __future__ import annotations

import ast
import functools
import importlib
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
def tests_in(path: pathlib.Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_there_are_rows() -> None:
    assert len(ROWS) > 30


@pytest.mark.parametrize("row", ROWS)
def test_pointers_resolve(row: str) -> None:
    function, test = pointers(row)
    parts = function.split(".")
    found: object = importlib.import_module(parts[0])
    for index, part in enumerate(parts[1:], 1):
        found = getattr(found, part, None) or importlib.import_module(".".join(parts[: index + 1]))
    path, name = test.split("::")
    assert name in tests_in(ROOT / path)
