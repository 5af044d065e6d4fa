"""What a release promises: one version everywhere, a quick start, a workflow that names no package index."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import diffusion_mf

ROOT = Path(__file__).parent.parent


def test_the_citation_has_the_version() -> None:
    (version,) = re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert version == diffusion_mf.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)


def test_the_site_needs_an_extra_of_its_own_and_tests_do_not_need_it() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert any(requirement.startswith("mkdocs") for requirement in extras["docs"])
    assert not any("mkdocs" in requirement or "[docs" in requirement for requirement in extras["dev"])


def test_the_workflow_runs_lint_tests_and_build_and_names_no_host() -> None:
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    for target in ("lint", "test", "docs", "build", "smoke"):
        assert f"run: make {target}\n" in text
    assert "://" not in text


@pytest.mark.parametrize("arguments", [["-c", "import diffusion_mf"], ["-m", "diffusion_mf.cli", "--help"]])
def test_nothing_slow_is_imported_before_it_is_needed(arguments: list[str]) -> None:
    """Times depend on the machine; that PyTorch and its like are not imported does not."""
    found = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments], capture_output=True, text=True, check=True
    ).stderr
    imported = {line.rpartition("|")[2].strip() for line in found.splitlines()}
    assert "diffusion_mf" in imported
    assert not imported & {"torch", "numpy", "pandas", "scipy", "transformers", "pydantic", "huggingface_hub", "spacy"}


def test_annotations_of_commands_are_objects() -> None:
    """Typer compiles those that are strings, twice: a fifth of the time of ``dmf --help``."""
    for path in (ROOT / "src" / "diffusion_mf" / "cli").glob("*.py"):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert "from __future__ import annotations" not in lines, path.name
