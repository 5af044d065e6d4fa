"""Links of the documents lead to files and headings that exist; lines can be read in an editor."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LONGEST_LINE = 150


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    """The headings of a document as links name them: in lower case, without marks, with hyphens for spaces."""
    headings = re.findall(r"^#+ (.+)$", without_code(path.read_text(encoding="utf-8")), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    for target, _, anchor in re.findall(
        r"\]\(([^)#\s]*)(#([^)\s]*))?\)", without_code(path.read_text(encoding="utf-8"))
    ):
        if ":" in target:
            continue
        place = (path.parent / target).resolve() if target else path
        # The references are made when the site is.
        if place.parent.name == "reference" and place.name in ("configuration.md", "commands.md"):
            continue
        assert place.exists(), target
        assert not anchor or anchor in anchors(place), f"{target}#{anchor}"


@pytest.mark.parametrize("path", sorted((ROOT / "docs").rglob("*.md")), ids=lambda path: str(path.relative_to(ROOT)))
def test_lines_are_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    # Rows of tables are one line, and so are the notes below generated ones.
    text = re.sub(r"<!-- (\w+): begin.*?<!-- \1: end -->", "", text, flags=re.DOTALL)
    lines = [line for line in text.splitlines() if not line.startswith("|")]
    assert [line for line in lines if len(line) > LONGEST_LINE] == []
