"""Every tutorial, followed from top to bottom in an empty folder: files are written, commands and Python are run."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from command_line import Outcome

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
PAGES = sorted(path.stem for path in TUTORIALS.glob("*.md"))


class Block(NamedTuple):
    language: str
    title: str | None
    """the name of the file that the block is"""
    text: str


def blocks(page: str) -> list[Block]:
    text = (TUTORIALS / f"{page}.md").read_text(encoding="utf-8")
    found = re.findall(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', text, flags=re.MULTILINE | re.DOTALL)
    return [Block(language, title or None, body) for language, title, body in found]


def without_numbers(text: str) -> str:
    """Scores depend on the machine in their last digits; what is around them does not."""
    return " ".join(re.sub(r"\d+(\.\d+)?", "#", text).split())


class Reader:
    """Somebody who follows a tutorial: what the last command or program printed, and the variables of the Python session."""

    def __init__(self, dmf: Callable[..., Outcome]) -> None:
        self._dmf = dmf
        self._printed = ""
        self._variables: dict[str, Any] = {}

    def follow(self, block: Block) -> None:
        if block.title is not None:
            Path(block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "bash":
            for line in block.text.splitlines():
                self._run(line)
        elif block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(block.text, self._variables)
            self._printed = printed.getvalue()
        else:
            assert block.language == "text", f"nothing runs a block of {block.language}"
            assert without_numbers(block.text) == without_numbers(self._printed)

    def _run(self, line: str) -> None:
        words = shlex.split(line)
        if words[0] == "python":
            runpy.run_path(words[1], run_name="__main__")
            return
        stdin = ""
        if words[0] == "echo":
            stdin, words = f"{words[1]}\n", words[words.index("|") + 1 :]
        assert words[0] == "dmf", line
        outcome = self._dmf(*words[1:], stdin=stdin.encode())
        assert outcome.status == 0, outcome.stderr
        self._printed = outcome.stdout.decode()


@pytest.mark.parametrize("page", PAGES)
def test_a_tutorial_can_be_followed(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dmf: Callable[..., Outcome]
) -> None:
    monkeypatch.chdir(tmp_path)
    reader = Reader(dmf)
    for block in blocks(page):
        reader.follow(block)


def test_there_are_five_and_none_is_empty() -> None:
    assert len(PAGES) == 5
    assert all(len(blocks(page)) >= 2 for page in PAGES)
