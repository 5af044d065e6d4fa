"""The documented example of a plugin, through every command that it is documented for."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
from plugin_files import forgotten_plugins, system_text
from small_runs import settings, write_config, write_small_corpus

from diffusion_mf import Tagger
from diffusion_mf.errors import InputError

DOCUMENT = (Path(__file__).parent.parent.parent / "docs" / "systems.md").read_text(encoding="utf-8")
SECTION = DOCUMENT[DOCUMENT.index("## Adding a system") :]


def blocks(kind: str) -> list[str]:
    return [text for found, text in re.findall(r"```(\w*)\n(.*?)```\n", SECTION, re.DOTALL) if found == kind]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The present folder, with the corpus that the document's commands speak of."""
    monkeypatch.chdir(tmp_path)
    corpus = write_small_corpus(tmp_path / "corpus")
    for name in ("train.txt", "dev.txt", "test.txt"):
        (tmp_path / name).write_bytes((corpus / name).read_bytes())
    return tmp_path


def test_the_documented_example_runs_through_all_commands(here: Path, dmf) -> None:
    (here / "cautious.py").write_text(blocks("python")[0])
    (here / "cautious.toml").write_text(blocks("toml")[0])
    (here / "plan.toml").write_text(blocks("toml")[1])
    (here / "corpora.toml").write_text(
        '[tiny]\ntask = "ner"\ntrain = "train.txt"\ndev = "dev.txt"\ntest = "test.txt"\n'
    )
    commands = [shlex.split(line) for line in blocks("")[0].splitlines()]
    assert [command[1] for command in commands] == ["train", "tag", "evaluate", "experiment", "experiment"]
    printed = {}
    for program, *arguments in commands:
        assert program == "dmf"
        # As in a process of its own; the runs of an experiment really have one each.
        with forgotten_plugins():
            outcome = dmf(*arguments)
        assert outcome.status == 0, outcome.stderr
        printed[" ".join(arguments[:2])] = outcome.stdout.decode()
    assert len((here / "tagged.txt").read_text().splitlines()) == len((here / "dev.txt").read_text().splitlines())
    assert "diffusion-cautious" in printed["evaluate run/model"]
    assert "Diffusion-Cautious" in printed["experiment table"]
    assert json.loads((here / "run/model/config.json").read_text())["config"]["plugins"] == ["cautious.py"]

    with pytest.raises(InputError, match=r"needs the plugin cautious\.py.* add --plugin cautious\.py"):
        Tagger.load("run/model")
    with forgotten_plugins():
        assert Tagger.load("run/model", plugins=["cautious.py"]).tag([["a"]])
    # A table is printed without the plugin, too, by the system's name.
    table = dmf("experiment", "table", "results")
    assert table.status == 0
    assert "diffusion-cautious" in table.stdout.decode()


def test_a_model_imports_nothing_by_itself(here: Path, dmf, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = here / "imported"
    (here / "own_system.py").write_text(f"open({str(marker)!r}, 'a').write('x')\n" + system_text("own"))
    monkeypatch.syspath_prepend(str(here))
    small = settings(here, {"system": "own", "plugins": ["own_system"], "training": {"epochs": 1}})
    write_config(here / "own.toml", small)
    write_config(here / "other.toml", settings(here))
    with forgotten_plugins():
        trained = dmf("train", "own.toml", "--output", "run")
        assert trained.status == 0, trained.stderr
    card = (here / "run/model/README.md").read_text()
    assert '"this-folder", plugins=["own_system"])' in card
    assert "dmf tag this-folder FILE --plugin own_system" in card
    marker.unlink()
    for arguments in (
        ("tag", "run/model", "dev.txt"),
        ("evaluate", "run/model", "dev.txt"),
        ("train", "--resume", "--output", "run"),
        ("train", "other.toml", "--output", "other", "--from", "run/model"),
    ):
        outcome = dmf(*arguments)
        assert outcome.status == 2
        assert "needs the plugin own_system, and code is imported only on request" in outcome.stderr
        assert "add --plugin own_system, or in Python plugins=['own_system']." in outcome.stderr
        assert outcome.stderr.count("\n") == 1
    assert not marker.exists()
    assert "own_system" not in sys.modules
    with forgotten_plugins():
        assert dmf("--plugin", "own_system", "evaluate", "run/model", "dev.txt").status == 0
    with forgotten_plugins():
        assert dmf("train", "--resume", "--output", "run", "--plugin=own_system").status == 0
    with forgotten_plugins():
        monkeypatch.setenv("DIFFUSION_MF_PLUGINS", "own_system")
        assert dmf("tag", "run/model", "dev.txt", "--output", "x.txt").status == 0


def test_plugins_on_the_command_line(here: Path, dmf) -> None:
    (here / "own_system.py").write_text(system_text("own"))
    with forgotten_plugins():
        shown = dmf("config", "show", "ner/unigram", "--set", "system=own", "--changed", "--plugin", "own_system.py")
        assert shown.status == 0, shown.stderr
        assert re.search(
            r'plugins += \["own_system.py"\] +# the plugins that define what the run uses', shown.stdout.decode()
        )
        # What is made of the package's own parts needs none.
        shown = dmf("config", "show", "ner/unigram", "--json")
        assert {"plugins": []}.items() <= {each["key"]: each["value"] for each in json.loads(shown.stdout)}.items()
    missing = dmf("train", "x.toml", "--plugin")
    assert missing.status == 2
    assert missing.stderr == "dmf: --plugin has no value; write --plugin MODULE.\n"
