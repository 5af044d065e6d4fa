"""docs/troubleshooting.md: every message that it explains is one that the package can print."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MESSAGES = re.findall(
    r"^### `(.+)`$", (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8"), flags=re.MULTILINE
)


@functools.cache
def texts_of_the_package() -> frozenset[str]:
    """Every string of the sources, with ``…`` for what is filled in."""
    found = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
                found.add("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return frozenset(found)


def test_there_are_enough_and_none_twice() -> None:
    assert len(MESSAGES) >= 15
    assert len(set(MESSAGES)) == len(MESSAGES)


@pytest.mark.parametrize("message", MESSAGES)
def test_the_package_has_the_message(message: str) -> None:
    assert any(message in text for text in texts_of_the_package())
