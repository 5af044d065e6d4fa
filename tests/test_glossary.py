"""The glossary of CONTRIBUTING.md: each name of the code that it explains is defined once in the package."""

from __future__ import annotations

import ast
import collections
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent
GLOSSARY = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Glossary")[2]
ROWS = [line.split("|")[1:3] for line in GLOSSARY.splitlines() if line.startswith("| ") and "| word |" not in line]
NAMES = sorted(set(re.findall(r"`(?:\w+\.)?([A-Z]\w+)`", GLOSSARY)))
PUBLIC = {"Span", "Layout", "Request", "Corpus", "Decoder", "DECODERS", "ENCODERS", "NO_LABEL", "Source"}
FORMER = {"Units", "Evaluation", "Shape", "Evidence"}


def definitions() -> collections.Counter[str]:
    """How often each name is defined at the top of a module: as a class, or by an assignment."""
    found: collections.Counter[str] = collections.Counter()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                found[node.name] += 1
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            found.update(target.id for target in targets if isinstance(target, ast.Name))
    return found


DEFINITIONS = definitions()


def test_there_are_some_forty_words_and_none_twice() -> None:
    words = [word.strip() for word, _ in ROWS]
    assert len(words) > 40
    assert len(set(words)) == len(words)


@pytest.mark.parametrize("name", sorted({*NAMES, *PUBLIC}))
def test_a_name_has_one_meaning(name: str) -> None:
    assert DEFINITIONS[name] == 1


@pytest.mark.parametrize("name", sorted(FORMER))
def test_a_name_that_had_several_meanings_is_gone(name: str) -> None:
    assert DEFINITIONS[name] == 0
