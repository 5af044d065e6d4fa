"""Runs whose data changed in the meantime are neither continued nor compared with others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import dmf as dmf
from experiment_files import corpora_text, made_up_result, start_runner, write_experiment, write_plan
from test_search import ONE_SYSTEM, finish, make_search
from test_sizes import write_sizes

from diffusion_mf.errors import InputError
from diffusion_mf.lab.experiments.folders import ExperimentFolder, Outcome, RunPlace
from diffusion_mf.lab.experiments.plan import load_plan
from diffusion_mf.lab.experiments.same_data import check_data, check_unchanged, made_with_other_data
from diffusion_mf.lab.experiments.selection import read_outcomes
from diffusion_mf.lab.experiments.sizes import load_sizes_plan

PLAN = 'systems = ["unigram"]\nseeds = [1, 2]\n[set]\ntraining.epochs = 1\n[evaluation]\nanalysis = false\n'


def test_runs_are_not_mixed_with_those_of_another_version_of_a_file(dmf: Callable[..., Any], tmp_path: Path) -> None:
    plan, output = write_plan(tmp_path, PLAN), tmp_path / "out"
    runner = start_runner(plan, output, "--only", "seed=1")
    runner.communicate(timeout=120)
    assert runner.returncode == 0
    (before,) = (output / "runs").glob("*/result.json")
    content = before.read_bytes()
    train = tmp_path / "corpus/ner/train.txt"
    loaded = load_plan(plan)
    check_data(ExperimentFolder(output), loaded.files(), loaded.digests)
    with train.open("a", encoding="utf-8") as stream:
        stream.write("Ann B-PER\n\n")

    # The other seed would be compared with the first one.
    command = ("experiment", "run", plan, "--output", output, "--devices", "cpu")
    outcome = dmf(*command, "--only", "seed=2")
    assert outcome.status == 2
    assert outcome.stderr == (
        f"dmf: {before.parent}: this run was not made with the data now in {train}; choose another folder with --output, "
        "or delete the folder of this run to repeat it.\n"
    )
    outcome = dmf(*command, "--dry-run")
    assert outcome.status == 2
    assert f"made with other data: {before.parent.name} ({train})\n" in outcome.stderr
    assert before.read_bytes() == content
    assert len(list((output / "runs").iterdir())) == 1


def test_a_file_may_move(tmp_path: Path) -> None:
    plan, folder = load_plan(write_plan(tmp_path, PLAN)), ExperimentFolder(tmp_path / "out")
    for name, files in plan.files().items():
        folder.run(name).describe({})
        folder.run(name).save_result({"data": plan.digests.of(files)})
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "corpus").rename(tmp_path / "elsewhere" / "corpus")
    (tmp_path / "corpora.toml").write_text(corpora_text(tmp_path / "elsewhere"), encoding="utf-8")
    moved = load_plan(tmp_path / "plan.toml")
    assert moved.files() != plan.files()
    assert made_with_other_data(folder, moved.files(), moved.digests) == {}


def test_what_a_run_has_used_so_far_decides(tmp_path: Path) -> None:
    plan = load_plan(write_plan(tmp_path, PLAN))
    folder = ExperimentFolder(tmp_path / "out")
    place = folder.run(plan.runs[0].name)
    place.describe({"data": {"train": "another", "dev": "another", "test": "another"}})
    files = plan.files()[plan.runs[0].name]

    def changed() -> list[str]:
        return made_with_other_data(folder, plan.files(), plan.digests).get(place.name, [])

    assert changed() == [], "it was only queued"
    place.checkpoint.mkdir()
    assert changed() == [files["train"], files["dev"]]
    place.checkpoint.rmdir()
    place.add_attempt(Outcome.DIVERGED)
    assert changed() == [files["train"], files["dev"]]
    place.save_result({"data": {"test": "another"}})
    assert changed() == [files["test"]]
    with pytest.raises(InputError, match=r"this run was not made with the data now in .*test\.txt"):
        check_data(folder, plan.files(), plan.digests)
    place.save_result({})
    assert changed() == [], "a result of an earlier version, which kept no digests"


def test_a_file_that_changes_while_runs_wait_is_found(tmp_path: Path) -> None:
    plan = load_plan(write_plan(tmp_path, PLAN))
    config = plan.runs[0].config
    place = RunPlace(tmp_path / "run")
    place.describe({"config": config.model_dump(mode="json"), "data": plan.digests.of(plan.files()[plan.runs[0].name])})
    check_unchanged(place)
    assert config.data.dev is not None
    Path(config.data.dev).write_text("Ann B-PER\n\n", encoding="utf-8")
    with pytest.raises(
        InputError, match=r"dev\.txt: the file changed after this command began; start the command again"
    ):
        check_unchanged(place)


def test_tables_refuse_runs_on_different_data(tmp_path: Path) -> None:
    def result(digest: str) -> dict[str, Any]:
        return {**made_up_result(dev={"argmax": 80.0}, test={"argmax": 79.0}), "data": {"train": digest}}

    runs = [({"corpus": "conll2003", "system": "lcrf", "seed": seed}, result("a")) for seed in (1, 2)]
    other = ({"corpus": "en-ewt", "system": "lcrf", "seed": 1}, result("b"))
    folder = write_experiment(tmp_path / "same", [*runs, other])
    read_outcomes(ExperimentFolder(folder))
    folder = write_experiment(tmp_path / "different", [*runs, ({**runs[0][0], "seed": 3}, result("b"))])
    with pytest.raises(
        InputError, match=r"runs on conll2003 were made with different train data, such as run0 and run2; "
    ):
        read_outcomes(ExperimentFolder(folder))


def test_learning_curves_are_of_one_version_of_a_corpus(dmf: Callable[..., Any], tmp_path: Path) -> None:
    path, output = write_sizes(tmp_path), tmp_path / "runs"
    plan = load_sizes_plan(path)
    place = ExperimentFolder(output).run(plan.runs[0].name)
    place.describe({})
    place.save_result({"data": plan.digests.of(plan.files()[place.name])})
    test = tmp_path / "corpus/ner/test.txt"
    test.write_text(test.read_text(encoding="utf-8") + "Ann B-PER\n\n", encoding="utf-8")
    outcome = dmf("benchmark", "sizes", path, "--output", output)
    assert outcome.status == 2
    assert f"runs/{place.name}: this run was not made with the data now in {test}" in outcome.stderr


def test_a_search_continues_with_the_same_data_only(tmp_path: Path) -> None:
    text = ONE_SYSTEM.replace("trials = 3", "trials = 1")
    search = make_search(tmp_path, text=text)
    assert finish(search)
    for place in map(RunPlace, (tmp_path / "out" / "runs").iterdir()):
        place.save_result({**(place.result() or {}), "data": place.description()["data"]})
    train = tmp_path / "corpus/ner/train.txt"
    train.write_text(train.read_text(encoding="utf-8") + "Ann B-PER\n\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"train\.txt; choose another folder with --output, and another database"):
        finish(make_search(tmp_path))
