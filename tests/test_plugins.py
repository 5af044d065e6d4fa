"""What plugins add, when they are imported, and what is said where something is wrong with them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from plugin_files import forgotten_plugins, system_text
from small_runs import SMALL_MODEL, settings, write_config, write_small_corpus

from diffusion_mf import plugins
from diffusion_mf.config import Config, load_config, saved_config, with_overrides
from diffusion_mf.config.files import locate_config
from diffusion_mf.errors import InputError
from diffusion_mf.lab.experiments.plan import fingerprint, load_plan
from diffusion_mf.lab.experiments.processes import _environment
from diffusion_mf.lab.experiments.search_plan import load_search
from diffusion_mf.model import Labeller
from diffusion_mf.networks.encoders import ENCODERS
from diffusion_mf.plugins import import_plugins
from diffusion_mf.systems import SYSTEMS

OWN = {"task": "ner", "system": "own"}


@pytest.fixture(autouse=True)
def _forgotten_plugins() -> Iterator[None]:
    with forgotten_plugins():
        yield


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The present folder, which Python looks into, too, with a plugin in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_system.py").write_text(system_text("own"))
    return tmp_path


def install(folder: Path, package: str, **modules: str) -> None:
    """An installed package, as far as its entry points go; ``_`` in their names stands for a hyphen."""
    information = folder / f"{package}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    points = [f"{name.replace('_', '-')} = {module}" for name, module in modules.items()]
    (information / "entry_points.txt").write_text("\n".join([f"[{plugins.GROUP}]", *points]) + "\n")
    importlib.invalidate_caches()
    plugins._entry_points.cache_clear()


def problem(*named: str) -> str:
    with pytest.raises(InputError) as caught:
        import_plugins(named)
    text = str(caught.value)
    assert text.endswith(".")
    assert "\n" not in text
    return text


@pytest.mark.parametrize("plugin", ["own_system", "own_system.py", "$FOLDER/own_system.py"])
def test_a_configuration_names_the_plugins_that_it_needs(here: Path, monkeypatch, plugin: str) -> None:
    monkeypatch.setenv("FOLDER", str(here))
    (here / "needless.py").write_text(system_text("needless"))
    import_plugins([plugin, "needless"])
    import_plugins([plugin])  # again
    named = "own_system.py" if plugin.endswith(".py") else plugin
    assert Config.model_validate(OWN).plugins == (named,)
    assert Config.model_validate({**OWN, "plugins": [plugin]}).plugins == (named,)
    assert Config.model_validate({**OWN, "system": "lcrf"}).plugins == ()
    assert Config.model_validate_json(Config.model_validate(OWN).model_dump_json()).plugins == (named,)
    # The same runs, whichever way the plugin was named.
    assert fingerprint(Config.model_validate(OWN)) == fingerprint(
        Config.model_validate({**OWN, "plugins": ["needless"]})
    )


def test_the_plugin_of_a_part_is_named_as_well(here: Path) -> None:
    (here / "parts.py").write_text(
        "from diffusion_mf.networks.encoders import ENCODERS, ScratchEncoder\nENCODERS['own'] = ScratchEncoder\n"
        "from diffusion_mf.decoding import DECODERS, Argmax\nDECODERS['own'] = Argmax()\n"
    )
    (here / "own_system.py").write_text(
        system_text("own").replace('plain_decoders=("argmax",)', 'plain_decoders=("own",)')
    )
    import_plugins(["parts.py", "own_system.py"])
    assert Config.model_validate(OWN).plugins == ("own_system.py", "parts.py")
    own_encoder = Config.model_validate({**OWN, "system": "lcrf", "encoder": {"kind": "own"}})
    assert own_encoder.plugins == ("parts.py",)


def test_what_a_plugin_is_the_first_to_import_is_not_its_own(here: Path) -> None:
    # As where a plugin imports the package's encoders before a command does.
    (here / "first.py").write_text("from diffusion_mf.plugins import Table\nTable('encoder', {'scratch': None})\n")
    import_plugins(["first"])
    assert Config.model_validate({**OWN, "system": "lcrf", "encoder": {"kind": "scratch"}}).plugins == ()


def test_what_python_code_registers_needs_no_plugin(here: Path) -> None:
    exec(system_text("own"))
    assert Config.model_validate(OWN).plugins == ()
    exec(system_text("own"))  # a cell that is run again


def test_a_configuration_of_ones_own_imports_what_it_names(here: Path) -> None:
    write_config(here / "own.toml", {**OWN, "plugins": ["own_system.py"]})
    (here / "base.toml").write_text('extends = "own.toml"\n[systems.own.training]\nepochs = 3\n')
    assert load_config("base.toml").training.epochs == 3
    (here / "own.toml").write_text('task = "ner"\nsystem = "own"\nplugins = ["nowhere"]\n')
    with pytest.raises(InputError, match=r"own\.toml, line 3: there is no module called 'nowhere'; install it"):
        load_config("own.toml")
    (here / "own.toml").write_text('task = "ner"\nsystem = "own"\nplugins = "own_system"\n')
    with pytest.raises(InputError, match=r"line 3: plugins must be a valid"):
        load_config("own.toml")


def test_a_system_of_ones_own_without_its_plugin(here: Path) -> None:
    with pytest.raises(InputError, match=r"found 'own'; .*, or add --plugin MODULE for one of your own\.$"):
        load_config("ner/lcrf", ["system=own"])


def test_overrides_import_what_they_name(here: Path) -> None:
    assert load_config("ner/lcrf", ["plugins=['own_system']", "system=own"]).plugins == ("own_system",)


def test_plans_and_searches_import_what_they_name(here: Path) -> None:
    write_small_corpus(here)
    write_config(here / "small.toml", {"task": "ner", "system": "lcrf", **SMALL_MODEL})
    plan = 'plugins = ["own_system.py"]\nconfigs = "small.toml"\nsystems = ["own"]\nseeds = [1]\n'
    corpora = '[corpora.tiny]\ntask = "ner"\ntrain = "ner/train.txt"\ndev = "ner/dev.txt"\n'
    (here / "plan.toml").write_text(plan + corpora)
    assert load_plan("plan.toml").runs[0].config.plugins == ("own_system.py",)
    # Workers are told, wherever they run.
    assert _environment(1)[plugins.VARIABLE] == str(here / "own_system.py")
    (here / "search.toml").write_text(
        plan + corpora + '[[stages]]\nname = "a"\ntrials = 1\nspace = { "training.epochs" = [1, 2] }\n'
    )
    assert load_search("search.toml").subjects[0].system == "own"


def test_saved_configurations_only_say_what_they_need(here: Path) -> None:
    saved = {**OWN, "plugins": ["own_system", "other.py"]}
    with pytest.raises(InputError) as caught:
        saved_config(saved, path="model/config.json")
    assert str(caught.value) == (
        "model/config.json: needs the plugins own_system, other.py, and code is imported only on request; if you trust "
        "them, add --plugin own_system --plugin other.py, or in Python plugins=['own_system', 'other.py']."
    )
    with pytest.raises(InputError, match="needs the plugin own_system"):
        Config.model_validate({**OWN, "plugins": ["own_system"]})
    for damaged in ({}, {"plugins": [1]}, {"plugins": "x"}):
        with pytest.raises(InputError, match="no plugin adds the system 'own'; add --plugin MODULE"):
            saved_config({**OWN, **damaged}, path="x")
    with pytest.raises(InputError, match="x: plugins"):
        saved_config({**OWN, "system": "lcrf", "plugins": [1]}, path="x")
    assert "own_system" not in sys.modules
    import_plugins(["own_system"])
    with pytest.raises(InputError, match="the system 'else' is not added by own_system; give the version"):
        saved_config({**OWN, "system": "else", "plugins": ["own_system"]}, path="x")


def test_entry_points_are_imported_for_names_that_are_asked_for(here: Path) -> None:
    (here / "other_system.py").write_text(system_text("other-own"))
    install(here, "own", own="own_system", other_own="other_system")
    load_config("ner/lcrf")
    # A model is no user: it does not choose among what is installed.
    with pytest.raises(InputError, match="add --plugin own_system"):
        saved_config({**OWN, "plugins": ["own_system"]}, path="x")
    with pytest.raises(InputError, match="no plugin adds"):
        saved_config(OWN, path="x")
    assert not {"own_system", "other_system"} & set(sys.modules)
    (here / "tables.toml").write_text('task = "ner"\n[systems.other-own]\nseed = 5\n[systems.own]\nseed = 7\n')
    config = load_config("tables.toml", ["system=own"])
    assert (config.plugins, config.seed) == (("own_system",), 7)
    assert "other_system" not in sys.modules
    # In the name of a configuration that comes with the package, and in a run that is resumed.
    assert load_config("ours/ner/other-own").plugins == ("other_system",)
    assert with_overrides(config, ["system=other-own"]).plugins == ("own_system", "other_system")


def test_entry_points_of_encoders(here: Path) -> None:
    (here / "own_encoder.py").write_text(
        "from diffusion_mf.networks.encoders import ENCODERS, ScratchEncoder\nENCODERS['own-encoder'] = ScratchEncoder\n"
    )
    install(here, "own", own_encoder="own_encoder")
    assert load_config("ner/lcrf", ["encoder.kind=own-encoder"]).plugins == ("own_encoder",)
    assert "own-encoder" in ENCODERS


def test_entry_points_that_are_no_use(here: Path) -> None:
    install(here, "first", other="own_system")
    with pytest.raises(InputError, match="own_system is installed for 'other', but adds nothing of that name"):
        load_config("ner/lcrf", ["system=other"])
    install(here, "second", other="other_system")
    with pytest.raises(InputError, match=r"several installed packages add 'other' \(other_system, own_system\)"):
        load_config("ner/lcrf", ["system=other"])


def test_messages(here: Path) -> None:
    assert problem("nowhere.at.all").startswith(
        "there is no module called 'nowhere.at.all'; install it, add its folder to"
    )
    assert problem("nowhere.py") == "there is no plugin file nowhere.py; check the path."
    assert "'my plugin' cannot be a plugin; give the dotted name of a module, or the path" in problem("my plugin")
    (here / "broken.py").write_text("x = 1\n\nraise RuntimeError('first line\\nsecond line')\n")
    assert "broken cannot be imported (RuntimeError: first line second line); correct it; --debug" in problem("broken")
    assert "cannot be imported (RuntimeError: first" in problem("broken.py")
    (here / "needy.py").write_text("import nowhere\n")
    assert "the plugin needy cannot be imported (ModuleNotFoundError: No module named 'nowhere')" in problem("needy")
    (here / "leaving.py").write_text("import sys\nsys.exit(3)\n")
    assert "leaving.py cannot be imported (SystemExit: 3)" in problem("leaving.py")
    assert not {"broken", "needy", "leaving"} & set(sys.modules)
    (here / "json.py").write_text("")
    assert "json.py would hide another module called 'json'" in problem("./json.py")
    (here / "sub").mkdir()
    (here / "sub" / "own_system.py").write_text("")
    assert "would hide another module called 'own_system'" in problem("sub/own_system.py")


def test_names_that_are_taken(here: Path) -> None:
    before = SYSTEMS["lcrf"]
    (here / "taken.py").write_text(system_text("lcrf"))
    assert problem("taken.py") == (
        "the plugin taken.py adds the system 'lcrf', which exists already; give it another name."
    )
    assert SYSTEMS["lcrf"] is before
    import_plugins(["own_system"])
    (here / "again.py").write_text(system_text("own"))
    assert "adds the system 'own', which exists already, from the plugin own_system; give it" in problem("again")


def test_a_plugin_that_failed_can_be_corrected(here: Path) -> None:
    (here / "second.py").write_text(system_text("second") + "\nraise ValueError('too late')\n")
    problem("second.py")
    (here / "second.py").write_text(system_text("second") + "# correct\n")
    import_plugins(["second.py"])
    assert Config.model_validate({**OWN, "system": "second"}).plugins == ("second.py",)


def test_a_system_whose_structure_nothing_adds(here: Path, tmp_path: Path) -> None:
    from diffusion_mf.training.corpora import read_training_data

    (here / "own_system.py").write_text(system_text("own").replace('structure="unigram"', 'structure="crooked"'))
    import_plugins(["own_system.py"])
    config = Config.model_validate(settings(write_small_corpus(tmp_path), {"system": "own"}))
    data = read_training_data(config)
    with pytest.raises(InputError, match="the system own needs the structure 'crooked', which nothing adds"):
        Labeller(config, data.vocabulary, data.scheme)


def test_paths_of_configurations_are_found_as_before() -> None:
    assert locate_config("ours/ner/own") is None
