from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from experiment_files import write_plan
from plugin_files import forgotten_plugins

from diffusion_mf.config import load_config
from diffusion_mf.errors import InputError
from diffusion_mf.lab.experiments.paper import paper_tables
from diffusion_mf.lab.experiments.plan import PlanFile, chosen_runs, fingerprint, load_plan
from diffusion_mf.lab.experiments.search_plan import load_search

CONFIGS = Path(__file__).parents[3] / "configs"
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
    compiled = load_plan(tmp_path / "a/plan.toml", overrides=["training.compile=true"]).runs[0]
    assert compiled.name == first.name


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
        ('systems = ["unigram"]\nseeds = [1]\n[grid]\ntraining.epochs = 3', "not a list of values"),
        ('systems = ["unigram"]\nseeds = [1]\n[encoders."a/b"]', "part of a file name"),
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


def test_an_optional_corpus_is_left_out_until_its_training_file_is_there(tmp_path: Path) -> None:
    path = write_plan(tmp_path, 'systems = ["unigram"]\nseeds = [1]\n')
    path.write_text(path.read_text().replace('["tiny"]', '["tiny", "rare"]'))
    corpora = tmp_path / "corpora.toml"
    own = corpora.read_text()
    rare = own.replace("[tiny]", "[rare]").replace("/train.txt", "/rare.txt")
    corpora.write_text(f"{own}{rare}optional = true\n")
    plan = load_plan(path)
    assert ([run.corpus for run in plan.runs], plan.left_out) == (["tiny"], ["rare"])
    (tmp_path / "corpus/ner/rare.txt").write_bytes((tmp_path / "corpus/ner/train.txt").read_bytes())
    plan = load_plan(path)
    assert ([run.corpus for run in plan.runs], plan.left_out) == (["tiny", "rare"], [])


def test_exceptions_for_seeds(tmp_path: Path) -> None:
    text = 'systems = ["unigram", "lcrf"]\nseeds = [1, 2, 3]\n[[exceptions]]\n'
    plan = load_plan(write_plan(tmp_path, text + 'where = { system = "lcrf", seed = [2, 3] }\nskip = true\n'))
    assert [run.seed for run in plan.runs if run.system == "lcrf"] == [1]
    assert [run.seed for run in plan.runs if run.system == "unigram"] == [1, 2, 3]
    with pytest.raises(InputError, match="an exception is for the seed '4', which does not exist"):
        load_plan(write_plan(tmp_path, text + "where = { seed = 4 }\nskip = true\n"))


def test_german_and_dutch_have_the_papers_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for folder, name in (("UD_German-GSD", "de_gsd"), ("UD_Dutch-LassySmall", "nl_lassysmall")):
        (tmp_path / "ud-2.15" / folder).mkdir(parents=True)
        (tmp_path / "ud-2.15" / folder / f"{name}-ud-train.conllu").touch()
    monkeypatch.setenv("DIFFUSION_MF_DATA", str(tmp_path))

    def settings(plan: str) -> dict[str, tuple[int | None, int, bool]]:
        return {
            run.corpus: (run.config.training.max_sentences, run.config.training.warmup_steps, run.config.data.lowercase)
            for run in load_plan(CONFIGS / "plans" / plan).runs
            if run.system == "diffusionsl" and run.config.task == "pos"
        }

    english = (32, 1000, True)
    assert settings("main.toml") == {
        "en-ewt": english, "de-gsd": english, "nl-lassysmall": english, "fr-gsd": (64, 1000, False),
    }  # fmt: skip
    pretrained = settings("pretrained-main.toml")
    assert pretrained.pop("nl-lassysmall")[:2] == (16, 2000)
    assert {corpus: values[:2] for corpus, values in pretrained.items()} == dict.fromkeys(pretrained, (32, 1000))
    assert len(pretrained) == 3


SWEEPS = {"scaling": "size", "depth": "layers", "iterations": "num_iterations"}


@pytest.mark.parametrize(
    ("kind", "configs"),
    [*itertools.product(SWEEPS, (None, "../{task}/{system}.toml")), ("base", None), ("ours-base", None)],
)
def test_sweeps_cover_the_papers_values_on_english_and_ner(kind: str, configs: str | None) -> None:
    plan = load_plan(CONFIGS / f"plans/{kind}.toml", configs=configs)
    kind = kind.removeprefix("ours-")
    assert all(("/ours/" in run.source) == (configs is None) for run in plan.runs if kind != "base")
    assert (plan.table, plan.record_file) == (kind, "results/sweeps.json")
    published = paper_tables()[kind]
    for corpus in ("en-ewt", "conll2003"):
        runs = [run for run in plan.runs if run.corpus == corpus]
        assert len({run.seed for run in runs}) >= 2
        if kind == "base":
            assert plan.evaluation.bases == [1.5, 2, 3, 4]
            assert {run.encoder for run in runs} != {"scratch"}
            continue
        found = {(run.system, run.variant.removeprefix(f"{SWEEPS[kind]}=")) for run in runs}
        source = published["scratch"] if kind == "scaling" else published
        source = published["training"] if kind == "iterations" else source
        wanted = {(system, setting) for system, values in source.items() for setting in values}
        assert found >= {place for place in wanted if corpus == "en-ewt" or place[1] != "XL"}
        largest = [run.seed for run in runs if run.variant == "size=XL" and run.system == "diffusion-mf"]
        assert largest == ([1] if kind == "scaling" and corpus == "en-ewt" else [])


def test_controls_of_recall_share_runs_with_recall() -> None:
    names = ("recall-controls", "ours-recall", "ours-main")
    with forgotten_plugins():
        controls, recall, main = (load_plan(CONFIGS / "plans" / f"{name}.toml").runs for name in names)
    known = {run.name for run in (*recall, *main)}
    shared = {(run.system, run.variant) for run in controls if run.name in known}
    assert shared == {
        *((system, "sentences") for system in ("unigram", "lcrf", "diffusion-uni", "diffusion-mf")),
        *((system, "documents") for system in ("diffusion-uni", "diffusion-mf", "diffusion-lcrf")),
    }
    assert len({run.name for run in controls}) == len(controls) == 24 * 2 * 4
    for run in controls:
        assert (run.config.recall > 0) == (run.variant not in ("sentences", "deep", "wide"))
        if run.variant == "stacked":
            assert run.config.encoder.model == f"runs/recall/marginals/{run.corpus}.seed{run.seed}.npz"


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_shipped_plans_load(path: Path) -> None:
    with forgotten_plugins():
        plan = load_plan(path)
    assert plan.runs
    assert plan.record_file is not None
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
    chosen = chosen_runs(plan.runs, ["seed=3, 1", "system=lcrf"])
    assert [(run.system, run.seed) for run in chosen] == [("lcrf", 1), ("lcrf", 3)]
    assert chosen_runs(plan.runs, []) == list(plan.runs)


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("seed=4", "the plan has no seed '4'; choose among 1, 2, 3"),
        ("seed", "is not a condition"),
        ("layers=4", "is not a condition"),
    ],
)
def test_conditions_that_no_run_can_fulfil(tmp_path: Path, condition: str, message: str) -> None:
    plan = load_plan(write_plan(tmp_path, CHOICES))
    with pytest.raises(InputError, match=message):
        chosen_runs(plan.runs, [condition])


def test_conditions_that_exclude_each_other(tmp_path: Path) -> None:
    plan = load_plan(write_plan(tmp_path, CHOICES))
    with pytest.raises(InputError, match="no run of the plan matches --only seed=1 --only seed=2"):
        chosen_runs(plan.runs, ["seed=1", "seed=2"])
