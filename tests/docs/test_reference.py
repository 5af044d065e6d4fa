"""The generated pages of the site: no setting, command or option is left out or unexplained."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from diffusion_mf.config import Config
from diffusion_mf.config.sections import Section


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    specification = importlib.util.spec_from_file_location("hooks", Path(__file__).parents[2] / "docs" / "hooks.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


SECTIONS = {"": Config} | {
    name: field.annotation
    for name, field in Config.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
}


@pytest.mark.parametrize("section", SECTIONS)
def test_every_setting_has_a_meaning(section: str, hooks: ModuleType) -> None:
    explained = set(hooks.descriptions(SECTIONS[section]))
    assert explained >= set(SECTIONS[section].model_fields) - set(SECTIONS)


def test_every_setting_is_on_the_page(hooks: ModuleType) -> None:
    page = hooks.configuration_page()
    for name, section in SECTIONS.items():
        part = page.partition(f"## `[{name}]`" if name else "## Top level")[2].partition("\n## ")[0]
        for setting in set(section.model_fields) - set(SECTIONS):
            assert f"\n| `{setting}` | " in part
    assert "| `width` | integer from 1 to 16,384 | `512` |" in page
    assert '| `pooling` | `"first"`, `"mean"` | `"first"` |' in page


def test_every_command_is_on_the_page_and_every_option_has_a_meaning(hooks: ModuleType) -> None:
    page = hooks.commands_page()
    for command in ("dmf tag", "dmf train", "dmf data check", "dmf experiment run", "dmf serve", "dmf config show"):
        assert f"\n## `{command}`\n" in page
    assert "` |  |" not in page
    assert "| `--task NAME` | The labelling task. One of `pos`, `ner`, `seg-pos`. |" in page


def test_links_of_a_page_lead_to_its_place_in_the_site(hooks: ModuleType) -> None:
    known = {"training.md", "results/cpu.json", "tutorials/ner.md"}
    text = (
        "[a](../results/cpu.json) [b](training.md#step) [c](../src/x.py) [d](https://example.org) [e](../SECURITY.md)"
    )
    assert hooks.site_links(text, "docs/speed.md", "speed.md", known) == (
        "[a](results/cpu.json) [b](training.md#step) c [d](https://example.org) [e](security.md)"
    )
    assert hooks.site_links("[a](docs/training.md)", "SECURITY.md", "security.md", known) == "[a](training.md)"
    assert hooks.site_links("[a](../training.md)", "docs/tutorials/ner.md", "tutorials/ner.md", known) == (
        "[a](../training.md)"
    )
