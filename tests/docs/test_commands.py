"""Every command line that the documents show is one of an existing command, with options that it has."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from diffusion_mf.cli import app

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def command_lines(path: Path) -> list[str]:
    """What follows ``dmf`` in lines of code, without comments."""
    text = re.sub(r"\\\n\s*", "", path.read_text(encoding="utf-8"))
    fenced = re.findall(r"^```(?:bash)?\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    lines = [*re.findall(r"^ {4}(.+)$", text, flags=re.MULTILINE), *"\n".join(fenced).splitlines()]
    found = (
        re.search(r"(?:^|[|] |[A-Z_]+=\S+ |diffusion_mf\.cli )(?:dmf )?(?<=dmf |cli )(.+)$", line) for line in lines
    )
    return [re.sub(r"\s+# .*", "", match[1]) for match in found if match is not None]


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """The command that the first words name, and the rest."""
    command: Any = get_command(app)
    while hasattr(command, "commands"):
        command, words = command.commands[words[0]], words[1:]
    return command, words


SHOWN = [(path, line) for path in DOCUMENTS for line in command_lines(path)]


@pytest.mark.parametrize(("path", "line"), SHOWN, ids=[f"{path.name}: {line[:40]}" for path, line in SHOWN])
def test_a_command_has_the_options_that_are_shown(path: Path, line: str) -> None:
    if line == "--version":
        return
    command, rest = command_of(shlex.split(line.replace("[", "").replace("]", "")))
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    shown = {word.partition("=")[0] for word in rest if word.startswith("-") and len(word) > 1}
    assert shown <= options | {"--plugin", "--debug"}, f"{path.name}: dmf {line}"


def test_there_are_many() -> None:
    assert len(SHOWN) > 60
