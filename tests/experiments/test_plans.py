from __future__ import annotations

from pathlib import Path

import pytest
from experiment_files import write_plan

from diffusion_mf.config import load_config
from diffusion_mf.errors import InputError
from diffusion_mf.experiments.plan import chosen_runs, fingerprint, load_plan
from diffusion_mf.experiments.plan_file import PlanFile
from diffusion_mf.experiments.search_plan import load_search

CONFIGS = Path(__file__).parents[2] / "configs"
PLANS = sorted(path for path in (CONFIGS / "plans").glob("*.toml") if path.name != "corpora.toml")

GRID = """
systems = ["unigram", "diffusion-mf"]
seeds = [1, 2]
[set]
training.epochs = 3
[grid]
denoiser.layers = [1, 2]
[[exceptions]]
where = { system = "unigram", variant = "layers=2" }
skip = true
[[exceptions]]
where = { task = "ner", system = "diffusion-mf", variant = "layers=2" }
set = { "training.epochs" = 5 }
"""


def test_grid_with_exceptions(tmp_path: Path) -> None:
    plan = load_plan(write_plan(tmp_path, GRID))
    found = [(run.seed, run.system, run.config.denoiser.layers, run.config.training.epochs) for run in plan.runs]
    assert found == [
        (seed, system, layers, epochs)
        for seed in (1, 2)
        for system, layers, epochs in (("unigram", 1, 3), ("diffusion-mf", 1, 3), ("diffusion-mf", 2, 5))
    ]
    assert all(run.config.seed == run.seed for run in plan.runs)
    assert len({run.name for run in plan.runs}) == len(plan.runs)


def test_names_tell_settings_apart_but_not_places(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    text = 'systems = ["unigram"]\nseeds = [1]\n'
    first = load_plan(write_plan(tmp_path / "a", text)).runs[0]
    moved = load_plan(write_plan(tmp_path / "b", text)).runs[0]
    assert first.config.data.train != moved.config.data.train
    assert first.name == moved.name
    changed = load_plan(tmp_path / "a/plan.toml", overrides=["training.learning_rate=0.5"]).runs[0]
    assert changed.name != first.name
    assert fingerprint(changed.config) in changed.name


def test_a_plan_may_name_configurations_of_the_package(tmp_path: Path) -> None:
    path = write_plan(tmp_path, 'systems = ["lcrf"]\nseeds = [1]\n')
    path.write_text(path.read_text().replace("small.toml", "ours/{task}/{system}"))
    (run,) = load_plan(path).runs
    assert run.source == "configs/ours/ner/lcrf"
    assert fingerprint(run.config) == fingerprint(load_config("ours/ner/lcrf"))


def test_of_several_files_the_first_that_exists_counts(tmp_path: Path) -> None:
    path = write_plan(tmp_path, 'systems = ["unigram"]\nseeds = [1]\n')
    corpora = tmp_path / "corpora.toml"
    train = f"{tmp_path}/corpus/ner/train.txt"
    corpora.write_text(corpora.read_text().replace(f'train = "{train}"', f'train = ["/nowhere/train.txt", "{train}"]'))
    assert load_plan(path).runs[0].config.data.train == train


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('systems = ["unigrum"]\nseeds = [1]', "systems"),
        ('systems = ["unigram"]\nseeds = []', "seeds is empty"),
        ('systems = ["unigram"]\nseeds = [1]\nworker = 3', "unknown key worker"),
        ('systems = ["unigram"]\nseeds = [1]\n[grid]\ntraining.epochs = 3', "no list of values"),
        ('systems = ["unigram"]\nseeds = [1]\n[encoders."a/b"]', "part of a file's name"),
        ('systems = ["unigram"]\nseeds = [1]\n[set]\ntraining.epoch = 3', "training.epochs"),
    ],
)
def test_bad_plans_are_refused_in_a_sentence(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_plan(write_plan(tmp_path, text))


def test_unknown_corpus(tmp_path: Path) -> None:
    path = write_plan(tmp_path, 'systems = ["unigram"]\nseeds = [1]')
    path.write_text(path.read_text().replace('["tiny"]', '["big"]'))
    with pytest.raises(InputError, match="no corpus 'big'"):
        load_plan(path)


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_shipped_plans_load(path: Path) -> None:
    plan = load_plan(path)
    assert plan.runs
    assert all(run.config.seed == run.seed for run in plan.runs)


def test_plan_file_fields_are_documented() -> None:
    text = (CONFIGS.parent / "docs/experiments.md").read_text(encoding="utf-8")
    for name in PlanFile.model_fields:
        assert f"`{name}`" in text or f"`[{name}" in text or f"`[[{name}" in text, name


def test_place_of_a_pretrained_encoder_is_not_part_of_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    for folder in ("/one", "/other/place"):
        monkeypatch.setenv("DIFFUSION_MF_ENCODERS", folder)
        names.append([run.name for run in load_plan(CONFIGS / "plans/ours-pretrained-main.toml").runs])
    assert names[0] == names[1]
    assert len(set(names[0])) == len(names[0]) == 4 * 7 * 4


@pytest.mark.parametrize("path", sorted((CONFIGS / "plans/search").glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_searches_give_every_system_as_many_trials(path: Path) -> None:
    totals = {sum(stage.trials for stage in subject.stages) for subject in load_search(path).subjects}
    assert len(totals) == 1


CHOICES = 'systems = ["unigram", "lcrf"]\nseeds = [1, 2, 3]\n'


def test_some_runs_of_a_plan(tmp_path: Path) -> None:
    plan = load_plan(write_plan(tmp_path, CHOICES))
    chosen = chosen_runs(plan, ["seed=3, 1", "system=lcrf"])
    assert [(run.system, run.seed) for run in chosen] == [("lcrf", 1), ("lcrf", 3)]
    assert chosen_runs(plan, []) == list(plan.runs)


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("seed=4", "the plan has no seed '4'; choose among 1, 2, 3"),
        ("seed", "is no condition"),
        ("layers=4", "is no condition"),
    ],
)
def test_conditions_that_no_run_can_fulfil(tmp_path: Path, condition: str, message: str) -> None:
    plan = load_plan(write_plan(tmp_path, CHOICES))
    with pytest.raises(InputError, match=message):
        chosen_runs(plan, [condition])


def test_conditions_that_exclude_each_other(tmp_path: Path) -> None:
    plan = load_plan(write_plan(tmp_path, CHOICES))
    with pytest.raises(InputError, match="no run of the plan fits --only seed=1 --only seed=2"):
        chosen_runs(plan, ["seed=1", "seed=2"])
