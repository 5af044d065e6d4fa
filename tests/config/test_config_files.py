"""Configurations out of several files: `extends`, tables for tasks, systems and encoders, and names."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from diffusion_mf.config import load_config, load_with_sources
from diffusion_mf.config.files import locate_config
from diffusion_mf.errors import InputError

ROOT = pathlib.Path(__file__).parents[2]
BASE = """\
task = "ner"
system = "lcrf"

[encoder]
layers = 3
dropout = 0.25

[training]
epochs = 7
"""


@pytest.fixture
def write(tmp_path):
    def writer(name: str, text: str) -> pathlib.Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return writer


def refused(path, overrides=()) -> str:
    with pytest.raises(InputError) as caught:
        load_config(path, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Inheritance.


def test_a_file_wins_over_what_it_extends_key_by_key_and_overrides_win_over_both(write) -> None:
    write("base.toml", BASE)
    path = write("folder/run.toml", 'extends = "../base.toml"\nsystem = "unigram"\n[encoder]\nlayers = 5\n')
    config = load_config(path)
    assert (config.task, config.system) == ("ner", "unigram")
    assert (config.encoder.layers, config.encoder.dropout, config.training.epochs) == (5, 0.25, 7)
    assert load_config(path, ["encoder.layers=1"]).encoder.layers == 1


def test_chains_and_lists_are_applied_in_order(write) -> None:
    write("base.toml", BASE)
    write("middle.toml", 'extends = "base.toml"\nseed = 2\n[encoder]\nlayers = 4\n')
    write("other.toml", "[encoder]\nlayers = 6\n[training]\nbudget = 50\n")
    config = load_config(write("run.toml", 'extends = ["middle.toml", "other.toml"]\n'))
    assert (config.system, config.seed, config.encoder.layers, config.training.budget) == ("lcrf", 2, 6, 50)
    assert load_config(write("run.toml", 'extends = ["other.toml", "middle.toml"]\n')).encoder.layers == 4


def test_a_base_that_is_reached_twice_does_not_undo_what_was_made_of_it(write) -> None:
    write("base.toml", BASE)
    write("a.toml", 'extends = "base.toml"\n[encoder]\nlayers = 4\n')
    write("b.toml", 'extends = "base.toml"\nseed = 5\n')
    config = load_config(write("run.toml", 'extends = ["a.toml", "b.toml"]\n'))
    assert (config.encoder.layers, config.seed) == (4, 5)


def test_what_is_stored_is_resolved(write) -> None:
    write("base.toml", BASE + "[systems.lcrf]\nseed = 3\n")
    dumped = load_config(write("run.toml", 'extends = "base.toml"\n')).model_dump()
    assert not {"extends", "systems", "tasks", "encoders"} & set(dumped)
    assert dumped["seed"] == 3


def test_an_error_in_an_inherited_value_names_the_line_where_it_stands(write) -> None:
    base = write("base.toml", BASE + "epoch = 3\n")
    path = write("run.toml", 'extends = "base.toml"\n[encoder]\nlayers = 5\n')
    assert refused(path) == f"{base}, line 10: unknown key training.epoch; the nearest name is training.epochs."
    base.write_text(BASE.replace("0.25", "1.5"), encoding="utf-8")
    assert refused(path).startswith(f"{base}, line 6: encoder.dropout must be less than 1")
    path.write_text('extends = "base.toml"\n\n[encoder]\ndropout = 2.0\n', encoding="utf-8")
    assert refused(path).startswith(f"{path}, line 4: encoder.dropout must be less than 1")
    assert refused(path, ["encoder.dropout=3"]).startswith("encoder.dropout must be less than 1")


def test_an_error_of_a_section_names_the_last_file_that_speaks_of_it(write) -> None:
    base = write("base.toml", BASE)
    path = write("run.toml", 'extends = "base.toml"\nencoder.width = 100\n')
    assert refused(path).startswith(f"{path}, line 2: encoder width must be a multiple of twice the heads")
    path.write_text('extends = "base.toml"\n', encoding="utf-8")
    assert refused(path, ["encoder.width=100"]).startswith(f"{base}, line 4: encoder width must be")


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (
            'seed = 1\nextends = "bse.toml"\n',
            2,
            "there is no configuration 'bse.toml' to extend; paths are relative to",
        ),
        ('extends = "ours/ner/diffusion-fm"\n', 1, "the nearest name is ours/ner/diffusion-mf."),
        ("extends = 3\n", 1, "extends must be the name of a configuration or a list of names, found 3"),
        ('extends = ["base.toml", 3]\n', 1, "extends must be the name of a configuration or a list of names"),
        ('\nextends = "run.toml"\n', 2, "extends 'run.toml', which extends this file"),
    ],
)
def test_what_cannot_be_extended(write, text, line, message) -> None:
    write("base.toml", BASE)
    path = write("run.toml", text)
    assert refused(path).startswith(f"{path}, line {line}: ")
    assert message in refused(path)


def test_a_cycle_is_refused_where_it_closes(write) -> None:
    write("a.toml", 'extends = "b.toml"\n' + BASE)
    last = write("b.toml", 'seed = 2\nextends = "a.toml"\n')
    assert refused(last.parent / "a.toml").startswith(f"{last}, line 2: extends 'a.toml', which extends this file")


def test_a_base_that_is_no_toml_is_named(write) -> None:
    base = write("base.toml", "task = \n")
    assert refused(write("run.toml", 'extends = "base.toml"\n')).startswith(f"{base}, line 1: not valid TOML")


def test_a_size_replaces_dimensions_of_bases_but_not_those_beside_it(write) -> None:
    base = 'task = "pos"\nsystem = "diffusion-mf"\n[denoiser]\nlayers = 3\nwidth = 64\ndropout = 0.0\n'
    write("base.toml", base)
    config = load_config(write("run.toml", 'extends = "base.toml"\nsize = "M"\n[denoiser]\nlayers = 2\n'))
    assert (config.denoiser.layers, config.denoiser.width, config.denoiser.dropout) == (2, 512, 0.0)
    # A dimension above a size stays what it says.
    write("sized.toml", 'task = "pos"\nsystem = "diffusion-mf"\nsize = "M"\n')
    config = load_config(write("run.toml", 'extends = "sized.toml"\n[denoiser]\nlayers = 2\n'))
    assert (config.denoiser.layers, config.denoiser.width) == (2, 512)


# Tables.

RECIPE = """\
[training]
epochs = 5

[tasks.ner]
training.epochs = 6

[systems."diffusion-*"]
denoiser.layers = 2

[systems.diffusion-mf]
denoiser.heads = 4

[tasks.ner.systems]
diffusion-mf.denoiser.layers = 9
"*lcrf".structure.transitions = "local"

[encoders.tiny]
encoder = { kind = "pretrained", model = "tiny" }
"""


def test_tables_hold_settings_for_some_tasks_and_systems(write) -> None:
    recipe = write("recipe.toml", RECIPE)

    def found(task, system):
        config = load_config(recipe, [f"task={task}", f"system={system}"])
        return config.training.epochs, config.denoiser.layers, config.denoiser.heads, config.structure.transitions

    assert found("pos", "unigram") == (5, 6, 8, "global")
    assert found("pos", "diffusion-uni") == (5, 2, 8, "global")
    assert found("pos", "diffusion-mf") == (5, 2, 4, "global")
    assert found("ner", "diffusion-mf") == (6, 9, 4, "global")
    assert found("ner", "diffusion-lcrf") == (6, 2, 8, "local")
    assert found("ner", "lcrf") == (6, 6, 8, "local")
    assert found("ner", "diffusionsl") == (6, 6, 8, "global")


def test_a_file_wins_over_the_tables_of_what_it_extends(write) -> None:
    write("recipe.toml", RECIPE)
    path = write("run.toml", 'extends = "recipe.toml"\ntask = "ner"\nsystem = "diffusion-mf"\n[denoiser]\nlayers = 1\n')
    config = load_config(path)
    assert (config.denoiser.layers, config.denoiser.heads, config.training.epochs) == (1, 4, 6)


def test_a_path_goes_on_with_encoder_task_and_system(write) -> None:
    recipe = write("recipe.toml", RECIPE)
    folder = recipe.with_suffix("")
    config = load_config(folder / "ner" / "diffusion-mf.toml")
    assert (config.task, config.system, config.denoiser.layers) == ("ner", "diffusion-mf", 9)
    assert load_config(folder / "ner" / "diffusion-mf") == config
    assert load_config(folder / "ner", ["system=diffusion-mf"]) == config
    assert load_config(folder / "ner" / "diffusion-mf", ["system=lcrf"]).system == "lcrf"
    assert load_config(folder / "tiny" / "ner" / "lcrf.toml").encoder.model == "tiny"
    with pytest.raises(InputError, match="no such file"):
        load_config(folder / "huge" / "ner" / "lcrf.toml")
    # A file that exists wins.
    write("recipe/ner/diffusion-mf.toml", BASE)
    assert load_config(folder / "ner" / "diffusion-mf.toml").system == "lcrf"


def test_a_recipe_without_a_system_says_what_is_missing(write) -> None:
    path = write("recipe.toml", RECIPE)
    assert refused(path, ["task=ner"]) == f"{path}: the key system is missing; add it, or use --set system=VALUE."


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("[systems.difusion-mf]\nseed = 2\n", 1, "difusion-mf is not a system; the nearest is diffusion-mf."),
        ('seed = 1\n[tasks."x*"]\nseed = 2\n', 2, "x* is not a task; choose from pos, ner, seg-pos."),
        ('[tasks.ner]\nsystem = "lcrf"\n', 2, "[tasks.ner] sets the system, which selects tables"),
        ("systems = 3\n", 1, "systems must hold one table per system; write [systems.NAME]."),
        ("[tasks.ner]\ntraining.epoch = 3\n", 2, "unknown key training.epoch; the nearest name is training.epochs."),
        ("[systems.lcrf.encoder]\nwidth = 100\n", 1, "encoder width must be a multiple of twice the heads"),
    ],
)
def test_mistakes_in_tables_have_their_lines(write, text, line, message) -> None:
    path = write("recipe.toml", text)
    found = refused(path, ["task=ner", "system=lcrf"])
    assert found.startswith(f"{path}, line {line}: ")
    assert message in found


# Names.


def test_configurations_of_the_package_have_names_wherever_one_is(tmp_path, monkeypatch, write) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_config("ner/diffusion-mf")
    assert (config.task, config.system, config.denoiser.layers) == ("ner", "diffusion-mf", 10)
    assert load_config("configs/ner/diffusion-mf.toml") == config
    assert load_config("ours/ner/diffusion-mf", ["seed=4"]).seed == 4
    assert load_config(write("run.toml", 'extends = "ner/diffusion-mf"\nseed = 2\n')).denoiser.layers == 10
    write("ner/diffusion-mf.toml", BASE)
    assert load_config("ner/diffusion-mf").encoder.layers == 3  # a file that exists wins


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("ner/difusion-mf", "ner/diffusion-mf"),
        ("our/pos/lcrf", "ours/pos/lcrf"),
        ("configs/ours/ner/diffusion-fm.toml", "ours/ner/diffusion-mf"),
        ("pretrained/ours/granit/ner/lcrf", "pretrained/ours/granite/ner/lcrf"),
    ],
)
def test_a_wrong_name_is_answered_with_the_nearest(name, nearest) -> None:
    assert refused(name) == f"{name}: no such file or configuration; the nearest name is {nearest}."
    assert refused("nothing-like-it") == ("nothing-like-it: no such file or configuration; check the path.")


def test_an_installed_package_brings_its_configurations(tmp_path) -> None:
    """The layout of the wheel: configs/ inside the package, and no checkout around it."""
    assert '"configs" = "diffusion_mf/configs"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    package = tmp_path / "diffusion_mf"
    shutil.copytree(ROOT / "src" / "diffusion_mf", package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "configs", package / "configs")
    code = "from diffusion_mf.config.files import read_settings; print(read_settings('ours/ner/lcrf').path)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str(package / "configs" / "ours.toml")


def test_sources_say_where_every_setting_was_made(write) -> None:
    base = write("base.toml", BASE)
    path = write("run.toml", 'extends = "base.toml"\nseed = 2\n[encoder]\nlayers = 5\n')
    _, sources = load_with_sources(path, ["training.budget=10"])
    assert str(sources["encoder", "layers"]) == f"{path}:4"
    assert str(sources["encoder", "dropout"]) == f"{base}:6"
    assert str(sources["training", "budget"]) == "--set"
    assert ("training", "decay") not in sources


def test_the_documents_example_loads_and_its_names_exist(write) -> None:
    document = (ROOT / "docs" / "training.md").read_text(encoding="utf-8").partition("## Configurations")[2]
    (example,) = re.findall(r"```toml\n(.*?)```", document, flags=re.DOTALL)
    config = load_config(write("run.toml", example))
    assert (config.system, config.seed, config.training.epochs, config.data.test) == ("diffusion-mf", 2, 20, None)
    for name in re.findall(r"dmf (?:train|config show) ([a-z/-]+/[a-z-]+)", document):
        assert locate_config(name) is not None
