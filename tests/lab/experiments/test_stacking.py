"""``benchmarks/stacking.py``: folds of documents, marginals of models that have not seen them, a stacked model, and a vote."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from experiment_files import write_plan
from plugin_files import forgotten_plugins

from diffusion_mf.batches.batching import collate
from diffusion_mf.batches.packing import pack, shape_for
from diffusion_mf.data.corpus import Task
from diffusion_mf.data.formats import read_task
from diffusion_mf.errors import InputError
from diffusion_mf.lab.experiments.folders import ExperimentFolder
from diffusion_mf.lab.experiments.plan import load_plan
from diffusion_mf.lab.experiments.worker import train_and_score
from diffusion_mf.lab.results import read_rows
from diffusion_mf.plugins import import_plugins
from diffusion_mf.tagger import load_model

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def stacking() -> Iterator[ModuleType]:
    with forgotten_plugins():
        import_plugins([str(ROOT / "benchmarks/stacking.py")])
        yield sys.modules["stacking"]


PLAN = """
table = "variants"
record = "{folder}/rows.json"
plugins = ["{root}/benchmarks/stacking.py"]
systems = ["unigram"]
seeds = [1]
[set]
training.epochs = 1
[variants.sentences]
[variants.stacked]
encoder.kind = "stacked"
encoder.model = "{folder}/out/marginals/tiny.seed1.npz"
encoder.recall = 2
encoder.recall_of = "flag"
training.layout = "packed"
inference.layout = "packed"
"""


def run(plan: Path, output: Path, variant: str = "default") -> None:
    """What ``dmf experiment run`` does in processes of its own."""
    for each in load_plan(plan).runs:
        if each.variant == variant:
            place = ExperimentFolder(output).run(each.name)
            place.describe(
                {
                    "config": each.config.model_dump(mode="json"),
                    "coordinates": each.coordinates(),
                    "source": each.source,
                    "command": "",
                    "evaluation": {},
                    "checkpoint_every": 300.0,
                    "keep": "model",
                }
            )
            train_and_score(place, device="cpu")


@pytest.fixture(scope="module")
def finished(stacking: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a plan with a stacked model, made by all of the commands."""
    folder = tmp_path_factory.mktemp("stacking")
    plan = write_plan(folder, PLAN.format(folder=folder, root=ROOT))
    for path in (folder / "corpus/ner").glob("*.txt"):
        sentences = path.read_text().strip().split("\n\n")
        pieces = ["\n\n".join(sentences[start : start + 4]) for start in range(0, len(sentences), 4)]
        path.write_text("".join(f"-DOCSTART- O\n\n{piece}\n\n" for piece in pieces))
    options = ["--plan", str(plan), "--output", str(folder / "out"), "--device", "cpu"]
    stacking.main(["folds", "--folds", "2", *options])
    run(folder / "out/folds/folds.toml", folder / "out")
    run(plan, folder / "out", "sentences")
    stacking.main(["marginals", *options])
    run(plan, folder / "out", "stacked")
    return folder


def test_folds_are_made_for_chosen_runs(stacking: ModuleType, tmp_path: Path) -> None:
    text = PLAN.format(folder=tmp_path, root=ROOT).replace("seeds = [1]", "seeds = [1, 2]")
    options = ["--plan", str(write_plan(tmp_path, text)), "--output", str(tmp_path / "out"), "--folds", "2"]
    stacking.main(["folds", *options, "--only", "seed=2"])
    assert {each.seed for each in load_plan(tmp_path / "out/folds/folds.toml").runs} == {2}
    with pytest.raises(InputError, match="the plan has no seed '3'"):
        stacking.main(["folds", *options, "--only", "seed=3"])


def test_folds_hold_whole_documents_and_together_all_of_train(finished: Path) -> None:
    whole = read_task(finished / "corpus/ner/train.txt", Task.NER)
    parts = [[*read_task(finished / f"out/folds/tiny-fold{fold}-held-out.txt", Task.NER)] for fold in (0, 1)]
    rest = [[*read_task(finished / f"out/folds/tiny-fold{fold}-train.txt", Task.NER)] for fold in (0, 1)]
    assert [[each.units for each in part] for part in parts] == [[each.units for each in part] for part in rest[::-1]]
    documents = [{each.units for each in whole if each.document % 2 == odd} for odd in (1, 0)]
    assert [{each.units for each in part} for part in parts] == documents


def test_marginals_are_those_of_models_that_have_not_seen_a_sentence(finished: Path, stacking: ModuleType) -> None:
    with np.load(finished / "out/marginals/tiny.seed1.npz") as file:
        sentences, marginals = json.loads(file["sentences"].tobytes()), torch.from_numpy(file["marginals"])
    parts = [
        *(read_task(finished / f"out/folds/tiny-fold{fold}-held-out.txt", Task.NER) for fold in (0, 1)),
        *(read_task(finished / f"corpus/ner/{split}.txt", Task.NER) for split in ("dev", "test")),
    ]
    assert [tuple(units) for units in sentences] == [each.units for part in parts for each in part]
    (plan,) = [each for each in load_plan(finished / "plan.toml").runs if each.variant == "sentences"]
    models = [*load_plan(finished / "out/folds/folds.toml").runs, plan, plan]
    start = 0
    for run_of_part, part in zip(models, parts, strict=True):
        place = ExperimentFolder(finished / "out").run(run_of_part.name)
        model = load_model(place.model)
        labeller = model.labeller.eval()
        for sentence in list(part)[:3]:
            batch = collate([sentence._replace(labels=None)], model.vocabulary)
            found = marginals[start : start + len(sentence.units)]
            torch.testing.assert_close(found, labeller.predict(batch).marginals[0], rtol=1e-4, atol=1e-5)
            start += len(sentence.units)
        start += sum(len(sentence.units) for sentence in list(part)[3:])


def test_a_stacked_model_sees_the_mean_marginals_of_the_others(finished: Path) -> None:
    (of_plan,) = [each for each in load_plan(finished / "plan.toml").runs if each.variant == "stacked"]
    model = load_model(ExperimentFolder(finished / "out").run(of_plan.name).model)
    encoder = model.labeller.eval().encoder
    assert encoder.recalled.weight.any()
    dev = [*read_task(finished / "corpus/ner/dev.txt", Task.NER)][:4]
    with np.load(finished / "out/marginals/tiny.seed1.npz") as file:
        units, marginals = json.loads(file["sentences"].tobytes()), torch.from_numpy(file["marginals"])
    starts = np.cumsum([0, *map(len, units)])
    batch = collate(dev, model.vocabulary, recall=2)
    rectangle = torch.zeros(*batch.form_ids.shape, marginals.shape[1])
    for row, sentence in enumerate(dev):
        start = starts[[tuple(each) for each in units].index(sentence.units)]
        rectangle[row, : len(sentence.units)] = marginals[start : start + len(sentence.units)]
    seen: list[torch.Tensor] = []
    encoder.recalled.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    places = batch.others.clamp(min=0)
    is_there = (batch.others >= 0)[..., None]
    means = (rectangle.flatten(0, 1)[places] * is_there).sum(2) / is_there.sum(2).clamp(min=1)
    assert means.any()
    expected = model.labeller.predict(batch).marginals
    is_unit = batch.form_ids > 0
    torch.testing.assert_close(seen[0][is_unit], means[is_unit])
    packed = pack(batch, shape_for(batch, budget=100, max_characters=model.config.encoder.max_characters))
    found = model.labeller.predict(packed).marginals[: len(dev), : expected.shape[1]]
    torch.testing.assert_close(found[is_unit], expected[is_unit], rtol=1e-4, atol=1e-5)


def test_votes_are_recorded_beside_the_variants(finished: Path) -> None:
    rows = read_rows(finished / "rows.json")
    assert {(row["variant"], row["decoder"]) for row in rows} == {
        (name, decoder) for name in ("vote-labels", "vote-marginals") for decoder in ("argmax", "mask-viterbi")
    }
    for row in rows:
        assert (row["experiment"], row["system"], row["setting"]) == ("variants", "unigram", row["variant"])
        assert 0 <= row["test_mean"] <= 100
    (of_plan,) = [each for each in load_plan(finished / "plan.toml").runs if each.variant == "stacked"]
    result = ExperimentFolder(finished / "out").run(of_plan.name).result()
    assert result is not None
    assert result["test_decoders"].keys() == {"argmax", "mask-viterbi"}


def test_a_sentence_without_marginals_is_refused(finished: Path) -> None:
    (of_plan,) = [each for each in load_plan(finished / "plan.toml").runs if each.variant == "stacked"]
    model = load_model(ExperimentFolder(finished / "out").run(of_plan.name).model)
    encoder, (sentence, *_) = model.labeller.encoder, read_task(finished / "corpus/ner/dev.txt", Task.NER)
    encoder.study([sentence], note=print)
    with pytest.raises(InputError, match="no marginals for some sentences"):
        encoder.study([sentence._replace(units=("never", "seen"))], note=print)


def test_the_model_of_an_unfinished_run_is_refused(finished: Path, stacking: ModuleType) -> None:
    fold = load_plan(finished / "out/folds/folds.toml").runs[0]
    place = ExperimentFolder(finished / "out").run(fold.name)
    result = place.result()
    assert result is not None
    (place.root / "result.json").unlink()
    try:
        with pytest.raises(InputError, match="this run has not finished"):
            stacking.TrainedModel(finished / "out", fold, torch.device("cpu"))
    finally:
        place.save_result(result)
