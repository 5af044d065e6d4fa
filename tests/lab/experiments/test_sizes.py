"""Plans of sizes: nested samples, runs that continue after a kill, and python-crfsuite beside them."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy
import pytest
from experiment_files import attempts_of

from diffusion_mf.data.columns import detect_layout, read_columns
from diffusion_mf.data.corpus import Task
from diffusion_mf.data.files import write_json
from diffusion_mf.data.formats import read_task
from diffusion_mf.errors import InputError
from diffusion_mf.lab.experiments.folders import ExperimentFolder, RunPlace
from diffusion_mf.lab.experiments.plan import known_corpora_of, load_plan
from diffusion_mf.lab.experiments.sizes import (
    SizesFile,
    load_sizes_plan,
    sample_file,
    sample_indices,
    sentence_blocks,
    train_on_sample,
)
from diffusion_mf.lab.synthetic import write_corpus

PLANS = Path(__file__).parents[3] / "configs" / "plans"

SIZES = """
systems = ["unigram", "python-crfsuite"]
sizes = [10, 20, 1000, "all"]
corpora = ["tiny"]
whole_corpora = ["without-dev"]
seeds = [1, 2]
device = "cpu"
[set]
encoder.width = 16
encoder.word_width = 8
encoder.affix_width = 8
training.epochs = 2
"""


def write_sizes(folder: Path, text: str = SIZES, *, sentences: int = 40) -> Path:
    write_corpus(folder / "corpus", flavours=["ner"], sizes={"train": sentences, "dev": 12, "test": 8}, seed=3)
    files = {split: f'{split} = "{folder / "corpus" / "ner" / split}.txt"\n' for split in ("train", "dev", "test")}
    entries = f'[tiny]\ntask = "ner"\n{"".join(files.values())}'
    entries += f'[without-dev]\ntask = "ner"\n{files["train"]}{files["test"]}'
    (folder / "corpora.toml").write_text(entries, encoding="utf-8")
    path = folder / "sizes.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_sample_contains_the_smaller_ones() -> None:
    samples = [sample_indices(1000, size, seed=1) for size in (10, 100, 500, 1000)]
    for smaller, larger in itertools.pairwise(samples):
        assert set(smaller) < set(larger)
    assert [len(sample) for sample in samples] == [10, 100, 500, 1000]
    assert samples[1] == sorted(samples[1]) == sample_indices(1000, 100, seed=1)
    assert samples[1] != sample_indices(1000, 100, seed=2)


def test_samples_have_sentences_as_they_stand_in_the_file_without_documents(tmp_path: Path) -> None:
    text = "-DOCSTART- O\n\nA B-PER\nb O\n\n\n# newdoc id = 1\n# sent_id = 2\nC O\n\n# only a comment\n\n-DOCSTART- O\nD O\n"
    (tmp_path / "train.txt").write_text(text)
    assert sentence_blocks(tmp_path / "train.txt", Task.NER) == ["A B-PER\nb O", "# sent_id = 2\nC O", "D O"]
    path = sample_file(str(tmp_path / "train.txt"), 2, 1, tmp_path / "samples", task=Task.NER)
    assert len(read_task(path, Task.NER)) == 2
    assert Path(path).read_text().endswith("\n\n")
    whole = sample_file(str(tmp_path / "train.txt"), "all", 1, tmp_path, task=Task.NER)
    assert whole == str(tmp_path / "train.txt")


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("a O\n \nb O\n\n# O\n\nc O\n\t\n", {}),
        ("a\tx\tO\r\nb\t \tO\r\n\r\n# c = d\r\n#newdoc\ty\tO\r\n-DOCSTART-\tx\tO\r\ne\tz\tO\r\n", {}),
        ("\ufeffO a\n# comment = b\nB-X c\n", {"data.form_column": 2, "data.tag_column": 1}),
    ],
)
def test_samples_have_the_sentences_that_readers_find(text: str, options: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    path.write_bytes(text.encode())
    given = {key.removeprefix("data."): str(value) for key, value in options.items()}
    sentences = list(read_columns(path, detect_layout(path, **given)))
    assert len(sentences) >= 2
    found = []
    for number, block in enumerate(sentence_blocks(path, Task.NER, options)):
        (tmp_path / f"{number}.txt").write_text(block + "\n\n")
        found += read_columns(tmp_path / f"{number}.txt", detect_layout(path, **given))
    assert [(one.units, one.labels) for one in found] == [(one.units, one.labels) for one in sentences]


def test_samples_of_conllu(tmp_path: Path) -> None:
    row = "\t".join(["{}", "{}", "_", "NOUN", *"______"]) + "\n"
    one, other = "# text = a b\n" + row.format(1, "a") + row.format(2, "b"), "#x\n" + row.format(1, "# newdoc")
    path = tmp_path / "train.conllu"
    path.write_text(f"# newdoc id = 1\n{one}\n\n#newpar\n{other}")
    assert sentence_blocks(path, Task.POS) == [one.rstrip("\n"), other.rstrip("\n")]
    path = tmp_path / "train.jsonl"
    path.write_text('{"units": ["a"], "labels": ["X"]}\n')
    with pytest.raises(InputError, match="samples of jsonl cannot be drawn; use columns or CoNLL-U"):
        sentence_blocks(path, Task.POS)


def test_the_plan_has_small_samples_first_and_no_larger_ones_than_the_corpus(tmp_path: Path) -> None:
    plan = load_sizes_plan(write_sizes(tmp_path))
    coordinates = [(run.corpus, run.size, run.system, run.seed) for run in plan.runs]
    assert len({run.name for run in plan.runs}) == len(coordinates)
    assert [size for _, size, *_ in coordinates[:8]] == [10] * 4 + [20] * 4
    assert {size for corpus, size, *_ in coordinates if corpus == "without-dev"} == {"all"}
    assert 1000 not in {size for _, size, *_ in coordinates}
    # python-crfsuite is trained once on all sentences, but for the corpus whose dev sentences depend on the seed.
    assert ("tiny", "all", "python-crfsuite", 2) not in coordinates
    assert ("without-dev", "all", "python-crfsuite", 2) in coordinates
    changed = load_sizes_plan(tmp_path / "sizes.toml", overrides={"training.epochs": 3})
    renamed = {a.system for a, b in zip(plan.runs, changed.runs, strict=True) if a.name != b.name}
    assert renamed == {"unigram"}


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('"unigram", ', '"bigram", ', "systems must be chosen from unigram"),
        ("[1, 2]", "[1, 1]", "seeds must contain 1 only once"),
        ("[1, 2]", "[]", "seeds is empty"),
        ("[10, 20", "[0, 20", "sizes"),
        ('"cpu"', '"tpu"', "device"),
        ('["tiny"]', '["huge"]', "there is no corpus 'huge'"),
        ("device", "place", "the key device is missing"),
    ],
)
def test_mistakes_in_a_plan_are_told(tmp_path: Path, old: str, new: str, problem: str) -> None:
    path = write_sizes(tmp_path, SIZES.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        load_sizes_plan(path)
    assert problem in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["gpu", "cpu"])
def test_shipped_plans_are_valid(name: str) -> None:
    path = PLANS / "sizes" / f"{name}.toml"
    plan = SizesFile.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    known = known_corpora_of(path.parent / plan.corpora_file)
    assert {*plan.corpora, *plan.whole_corpora} <= known.keys()
    assert "python-crfsuite" in plan.systems
    if name == "cpu":
        assert plan.workers == 1, "times are compared"


def test_other_plans_need_dev(tmp_path: Path) -> None:
    write_sizes(tmp_path)
    path = tmp_path / "plan.toml"
    path.write_text('systems = ["unigram"]\ncorpora = ["without-dev"]\nseeds = [1]\n')
    with pytest.raises(InputError, match="the corpus 'without-dev' has no dev file; add dev = FILE"):
        load_plan(path)


def start(plan: Path, output: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "diffusion_mf.cli", "benchmark", "sizes", str(plan), "--output", str(output)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    return subprocess.Popen(
        [*command, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def results_of(output: Path) -> dict[str, dict[str, Any]]:
    return {path.parent.name: json.loads(path.read_text()) for path in (output / "runs").glob("*/result.json")}


def is_trained_now(output: Path) -> bool:
    begun = {path.parent.name for path in (output / "runs").glob("*/log.jsonl")}
    return bool(begun - results_of(output).keys())


def test_killed_runs_continue_and_finished_ones_are_kept(tmp_path: Path) -> None:
    text = (
        SIZES.replace(', "python-crfsuite"', "").replace('20, 1000, "all"', "20").replace("epochs = 2", "epochs = 12")
    )
    plan = write_sizes(tmp_path, text.replace('whole_corpora = ["without-dev"]', ""))
    output = tmp_path / "runs"
    process = start(plan, output)
    # One is finished, and another is trained.
    while process.poll() is None and not (results_of(output) and is_trained_now(output)):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    finished = {name: result["date"] for name, result in results_of(output).items()}
    last = start(plan, output, "--json")
    rows, errors = last.communicate(timeout=120)
    assert last.returncode == 0, errors
    results = results_of(output)
    assert len(results) == 4
    assert {name: results[name]["date"] for name in finished} == finished
    assert all(outcomes[-1] == "complete" for outcomes in attempts_of(output).values())
    assert {(row["size"], row["sentences"]) for row in json.loads(rows)} == {(10, 10), (20, 20)}
    for name, result in results.items():
        place = RunPlace(output / "runs" / name)
        with numpy.load(place.root / "counts.npz") as stored:
            correct, predicted, gold = stored["test"].sum(axis=0).tolist()
            assert stored["test"].shape == (8, 3)
        assert result["test"]["f1"] == pytest.approx(100 * 2 * correct / (predicted + gold))
        assert not place.model.exists()
        assert not place.checkpoint.exists()
        assert {"command", "commit", "hardware", "seconds"} <= result.keys()


@pytest.mark.gpu
def test_samples_are_trained_on_a_gpu(tmp_path: Path) -> None:
    text = SIZES.replace(', "python-crfsuite"', ', "lcrf", "diffusion-mf"').replace('"cpu"', '"cuda"')
    plan = write_sizes(tmp_path, text.replace('20, 1000, "all"', "20").replace("[1, 2]", "[1]"))
    process = start(plan, tmp_path / "runs", "--workers", "2", "--json")
    rows, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert [row["device"] for row in json.loads(rows)] == ["cuda"] * 9
    assert all(0 <= row["test"] <= 100 for row in json.loads(rows))


def test_crfsuite_takes_the_regularisation_that_is_best_on_dev_and_continues(tmp_path: Path) -> None:
    pytest.importorskip("pycrfsuite")
    plan = load_sizes_plan(write_sizes(tmp_path))
    run = next(run for run in plan.runs if run.system == "python-crfsuite" and run.size == 20)
    folder = ExperimentFolder(tmp_path / "runs")
    (job,) = plan.jobs(folder, runs=[run], command="dmf benchmark sizes")
    place = folder.run(run.name)
    place.describe(job.description)
    # A pair that an interrupted attempt has scored is not trained again.
    place.root.joinpath("c1=0,c2=0.01").mkdir()
    place.root.joinpath("c1=0,c2=0.01", "model.crfsuite").touch()
    scored = {"c1": 0.0, "c2": 0.01, "dev": {"f1": -1.0}, "seconds": 1.0, "processor_seconds": 1.0}
    write_json(place.root / "regularisation.json", {"c1=0,c2=0.01": scored})
    train_on_sample(place, device="cpu")
    found = json.loads((place.root / "regularisation.json").read_text())
    result = place.result()
    assert result is not None
    assert len(found) == 6
    assert found["c1=0,c2=0.01"] == scored
    assert result["dev"]["f1"] == max(each["dev"]["f1"] for each in found.values())
    best = max(found.values(), key=lambda each: each["dev"]["f1"])
    assert (result["settings"]["c1"], result["settings"]["c2"]) == (best["c1"], best["c2"])
    assert result["device"] == "cpu"
    assert result["sentences"] == 20
    assert not list(place.root.glob("c1=*"))
